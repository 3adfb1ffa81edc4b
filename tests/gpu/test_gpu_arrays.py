"""CUDA arrays of torch and of other libraries, and what a call refuses of them."""

from __future__ import annotations

import flashattn
import numpy as np
import pytest
import torch
from flashattn import Arch, flash_attn_func, flash_attn_varlen_func
from gpu_problems import contiguous_rows, device_inputs, needs_alignment, rows
from problems import AttentionProblem

P = AttentionProblem(2, 70, 90, 4, 2, 64, "float16")


class DLPackOnly:
    """Exports a tensor by DLPack alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__dlpack__ = tensor.__dlpack__
        self.__dlpack_device__ = tensor.__dlpack_device__


class InterfaceOnly:
    """Exports a tensor by __cuda_array_interface__ alone."""

    def __init__(self, tensor: torch.Tensor, stream: int | None = None, offset: int = 0) -> None:
        interface = dict(tensor.__cuda_array_interface__)
        interface["data"] = (interface["data"][0] + offset, False)
        self.__cuda_array_interface__ = {**interface, "version": 3, "stream": stream}
        self.owner = tensor


def _tensors() -> list[torch.Tensor]:
    return device_inputs(P)


# ---- What comes back ----


def test_torch_tensors_come_back_on_their_device() -> None:
    q, k, v = _tensors()
    o, lse = flash_attn_func(q, k, v, return_lse=True)
    assert o.device == q.device and o.dtype == q.dtype and o.shape == q.shape
    assert lse.device == q.device and lse.dtype == torch.float32 and lse.shape == (2, 4, 70)
    out, own_lse = torch.empty_like(q), torch.empty_like(lse)
    results = flash_attn_func(q, k, v, out=out, lse=own_lse)
    assert results[0] is out and results[1] is own_lse
    assert torch.equal(out, o) and torch.equal(own_lse, lse)


@pytest.mark.parametrize("wrap", [DLPackOnly, InterfaceOnly])
def test_arrays_of_other_libraries(wrap: type) -> None:
    q, k, v = _tensors()
    expected, expected_lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    out, lse = torch.empty_like(expected), torch.empty_like(expected_lse)
    torch.cuda.synchronize()
    flash_attn_func(*map(wrap, (q, k, v)), causal=True, out=wrap(out), lse=wrap(lse))
    torch.cuda.synchronize()
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def test_bfloat16_by_dlpack() -> None:
    q, k, v = (x.to(torch.bfloat16) for x in _tensors())
    out = torch.empty_like(q)
    torch.cuda.synchronize()
    flash_attn_func(*map(DLPackOnly, (q, k, v)), out=DLPackOnly(out))
    torch.cuda.synchronize()
    assert torch.equal(out, flash_attn_func(q, k, v))


def test_array_interface_names_the_stream() -> None:
    q, k, v = _tensors()
    expected, out = flash_attn_func(q, k, v), torch.empty_like(q)
    stream, early = torch.cuda.Stream(), torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        early.copy_(q)
    arrays = [InterfaceOnly(x, stream.cuda_stream) for x in (early, k, v, out)]
    flash_attn_func(*arrays[:3], out=arrays[3])
    stream.synchronize()
    assert torch.equal(out, expected)
    with pytest.raises(ValueError, match="k is on the CUDA stream"):
        flash_attn_func(arrays[0], InterfaceOnly(k, 1), v, out=out)


def test_padded_queries_over_ragged_keys() -> None:
    q, k, v = _tensors()
    ragged = [x.reshape(-1, *x.shape[2:]) for x in (k, v)]
    ends = torch.tensor([0, 90, 180], dtype=torch.int32, device="cuda")
    o = flash_attn_varlen_func(
        q, *ragged, cu_seqlens_q=None, max_seqlen_q=None, cu_seqlens_k=ends, max_seqlen_k=90
    )
    assert torch.equal(o, flash_attn_func(q, k, v, config=flashattn.select_config(
        q, *ragged, cu_seqlens_k=ends, max_seqlen_k=90).config))  # fmt: skip


def test_batch_invariant_output_of_a_sequence_is_its_own() -> None:
    q, k, v = _tensors()
    together = flash_attn_func(q, k, v, causal=True, batch_invariant=True)
    for b in range(2):
        own = [x[b : b + 1] for x in (q, k, v)]
        alone = flash_attn_func(*own, causal=True, batch_invariant=True)
        assert torch.equal(alone[0], together[b])


# ---- What is refused ----


def _refused(error: type, match: str, *arrays: object, **options: object) -> None:
    with pytest.raises(error, match=match):
        flash_attn_func(*arrays, **options)


def test_rows_that_load_whole_chunks_name_the_alignment_they_need() -> None:
    shifted = device_inputs(
        AttentionProblem(2, 8, 90, 4, 2, 64, "float16", layouts=("shifted",) * 4)
    )
    for row in contiguous_rows():
        if needs_alignment(row.config) and row.config.dtype == 1 and row.config.d_head >= 64:
            _refused(NotImplementedError, "16-byte aligned", *shifted, config=row.config)
    assert not needs_alignment(flashattn.select_config(*shifted).config)


def test_element_addresses_that_no_element_has() -> None:
    """Odd addresses, which a kernel would die of: it takes its process's context along."""
    q, k, v = _tensors()
    out = torch.empty_like(q)
    odd = [InterfaceOnly(x, offset=1) for x in (q, k, v, out)]
    for i in range(4):
        arrays = [*(q, k, v, out)[:i], odd[i], *(q, k, v, out)[i + 1 :]]
        _refused(flashattn.FlashAttnError, "aligned", *arrays[:3], out=arrays[3])
    lse = InterfaceOnly(torch.empty(2, 4, 70, device="cuda"), offset=2)
    _refused(flashattn.FlashAttnError, "aligned", q, k, v, out=out, lse=lse)


def test_types_and_families_that_no_row_serves() -> None:
    q, k, v = _tensors()
    _refused(NotImplementedError, "no kernel.*FP32", *(x.float() for x in (q, k, v)))
    wide = torch.zeros(1, 8, 1, 1024, dtype=torch.float16, device="cuda")
    _refused(NotImplementedError, "no kernel.*d_head 1024", wide, wide, wide)
    on_cpu = next(
        r for r in flashattn.kernels() if r.config.arch == Arch.REFERENCE and r.config.dtype == 1
    )
    _refused(NotImplementedError, "CPU device only", q, k, v, config=on_cpu.config)
    on_gpu = next(r for r in rows() if r.config.d_head == 64 and r.config.dtype == 1)
    host = [x.cpu() for x in (q, k, v)]
    _refused(NotImplementedError, "CUDA devices only", *host, config=on_gpu.config)


def test_arrays_of_several_devices() -> None:
    q, k, v = _tensors()
    _refused(ValueError, "k is on the CPU, q on CUDA device 0", q, k.cpu(), v)
    _refused(ValueError, "v is on the CPU, q on CUDA", q, k, v.cpu().numpy())
    _refused(ValueError, "out is on the CPU, q on CUDA", q, k, v, out=q.cpu())
    _refused(ValueError, "lse is on the CPU", q, k, v, lse=torch.empty(2, 4, 70))


def test_lengths_of_another_device() -> None:
    q, k, v = _tensors()
    used = torch.tensor([9, 8], dtype=torch.int32)
    _refused(ValueError, "seqused_k is on the CPU, q on CUDA", q, k, v, seqused_k=used)
    _refused(ValueError, "seqused_k is on the CPU", q, k, v, seqused_k=used.numpy())
    _refused(ValueError, "seqused_k is of type list", q, k, v, seqused_k=[9, 8])
    ragged = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    longest = {"max_seqlen_q": 70, "max_seqlen_k": 90}
    with pytest.raises(ValueError, match="cu_seqlens_q is on the CPU, q on CUDA"):
        flash_attn_varlen_func(
            *ragged,
            cu_seqlens_q=torch.tensor([0, 70, 140], dtype=torch.int32),
            cu_seqlens_k=torch.tensor([0, 90, 180], dtype=torch.int32, device="cuda"),
            **longest,
        )


def test_results_that_only_another_library_could_allocate() -> None:
    q, k, v = map(DLPackOnly, _tensors())
    _refused(ValueError, "needs an array for the result: out=", q, k, v)
    out = torch.empty(2, 70, 4, 64, dtype=torch.float16, device="cuda")
    _refused(ValueError, "needs an array for the result: lse=", q, k, v, out=out, return_lse=True)


def test_heads_that_do_not_divide_and_outputs_that_overlap() -> None:
    q, k, v = _tensors()
    _refused(ValueError, "n_heads is 3: not a multiple", q[:, :, :3], k, v)
    _refused(ValueError, "out overlaps itself", q, k, v, out=q[:1].expand_as(q))
    lse = torch.empty(2, 4, 1, device="cuda").expand(2, 4, 70)
    _refused(ValueError, "lse overlaps itself", q, k, v, lse=lse)
    _refused(ValueError, "stride", q, k, v, out=torch.empty(2, 70, 4, 128, dtype=q.dtype,
                                                          device="cuda")[..., ::2])  # fmt: skip


def test_o_of_fp32() -> None:
    q, k, v = _tensors()
    narrow = flashattn.flash_attn_func(q, k, v)
    wide = flashattn.flash_attn_func(q, k, v, out_dtype="float32")
    assert wide.dtype == torch.float32 and wide.device == q.device
    assert torch.equal(wide.to(narrow.dtype), narrow) and not torch.equal(wide, narrow.float())
    out = torch.empty_like(wide)
    assert flashattn.flash_attn_func(q, k, v, out=out) is out and torch.equal(out, wide)
    assert flashattn.select_config(q, k, v, out_dtype="float32").config.arch >= Arch.SM80


def test_types_that_no_kernel_takes_are_refused() -> None:
    """A Q of fp32 is served, and becomes one of K's type; another of 16 bits is not."""
    q, k, v = _tensors()
    other = torch.bfloat16 if k.dtype == torch.float16 else torch.float16
    _refused(NotImplementedError, "if K and V are .*, Q and O can be: ", q.to(other), k, v)


def test_host_memory_gives_what_device_memory_gives() -> None:
    q, k, v = _tensors()
    on_gpu = flash_attn_func(q, k, v).float().cpu().numpy()
    on_cpu = flash_attn_func(*(x.cpu() for x in (q, k, v))).float().numpy()
    assert np.abs(on_gpu - on_cpu).max() < 2e-3
