"""The cases that broke others, each on every row that serves it.

sizes      lengths around tiles; nothing at all; more queries than keys
masks      first block hidden, windows of 0, wider than the keys, with more queries than keys
values     NaN and infinity in hidden and in visible places
memory     stride 0, V a view of K, odd element addresses, strides over 2^31, batches and heads
           over 65,535, more than 2^31 elements
heads      the ratios 1, 3, 5, 7, 8, 12
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import flashattn
import numpy as np
import pytest
import torch
from device_memory import download
from flashattn.compare import compare
from flashattn.oracle import Mask
from gpu_problems import (
    DTYPES,
    check,
    check_every_row,
    configs_for,
    device_inputs,
    device_options,
    run,
)
from memory import E4M3
from problems import AttentionProblem

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
D_HEAD = 128


# ---- Sizes ----


@every_dtype
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 129, 1000])
def test_lengths(length: int, dtype: str) -> None:
    p = AttentionProblem(2, length, length, 4, 2, D_HEAD, dtype)
    check_every_row(p)
    check_every_row(replace(p, causal=True))


def test_long_keys() -> None:
    check_every_row(AttentionProblem(1, 100, 4097, 2, 1, D_HEAD, "bfloat16", causal=True))


@pytest.mark.parametrize(
    "empty",
    [
        {"batch": 0},
        {"seqlen_q": 0},
        {"seqlen_k": 0},
        {"seqlen_q": 0, "seqlen_k": 0},
        {"seqused_k": (0, 0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True])
def test_empty(empty: dict, causal: bool) -> None:
    full = AttentionProblem(2, 70, 90, 2, 1, 64, "float16", causal=causal)
    check_every_row(replace(full, **empty))


def test_zero_length_sequences_in_a_ragged_batch() -> None:
    check_every_row(
        AttentionProblem(
            6, 90, 140, 2, 1, 64, "bfloat16", causal=True,
            cu_seqlens_q=(0, 0, 40, 40, 130, 130, 200), cu_seqlens_k=(0, 70, 70, 70, 200, 330, 330),
        )
    )  # fmt: skip


@pytest.mark.parametrize("side", ["cu_seqlens_q", "cu_seqlens_k"])
def test_ragged_batch_of_nothing_but_zero_lengths(side: str) -> None:
    check_every_row(AttentionProblem(3, 40, 40, 2, 1, 64, "float16", **{side: (0, 0, 0, 0)}))


def test_rows_without_a_key_are_zero_and_minus_infinity() -> None:
    """Masks are aligned bottom-right: of 190 queries over 60 keys the first 130 see nothing."""
    p = AttentionProblem(1, 190, 60, 2, 2, D_HEAD, "bfloat16", causal=True)
    for config in configs_for(p):
        o, lse = check(p, config)
        assert (o[:, :130] == 0).all() and (lse[:, :, :130] == -np.inf).all()
        assert np.isfinite(lse[:, :, 130:]).all()


@every_dtype
@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("seqlen_q", [1, 40, 300])
def test_one_key_with_a_score_of_zero_has_an_lse_of_zero(
    seqlen_q: int, d_head: int, dtype: str
) -> None:
    p = AttentionProblem(1, seqlen_q, 1, 2, 1, d_head, dtype)
    q, k, v = device_inputs(p)
    q.zero_()
    for config in configs_for(p):
        _, lse = run(p, [q, k, v], config)
        assert (lse == 0).all(), config


# ---- Masks ----


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(0, 0), (0, -1), (-1, 0), (3, 2), (500, 500), (70, 0)], ids=str)
@pytest.mark.parametrize("lengths", [(150, 150), (40, 310), (310, 40)], ids=str)
def test_windows(lengths: tuple, window: tuple, causal: bool) -> None:
    p = AttentionProblem(1, *lengths, 4, 2, 64, "float16", causal=causal, window_size=window)
    check_every_row(p)


def test_window_hides_whole_blocks_before_the_first_visible_key() -> None:
    p = AttentionProblem(1, 70, 600, 2, 1, D_HEAD, "bfloat16", window_size=(5, -1))
    check_every_row(p)
    check_every_row(replace(p, seqlen_q=600, window_size=(5, 3)))


# ---- Values ----


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", [1, 2], ids=["k", "v"])
@every_dtype
def test_poison_reaches_only_the_rows_that_see_it(dtype: str, tensor: int, poison: float) -> None:
    """A key in the middle is NaN. Rows that do not see it keep their bits."""
    p = AttentionProblem(1, 190, 190, 2, 1, D_HEAD, dtype, causal=True, window_size=(70, -1))
    hidden = ~Mask(True, 70, -1).visible(190, 190)[:, 68]
    for config in configs_for(p):
        clean, clean_lse = run(p, config=config)
        tensors = device_inputs(p)
        tensors[tensor][:, 68] = poison
        o, lse = run(p, tensors, config)
        assert (o[:, hidden] == clean[:, hidden]).all()
        assert (lse[:, :, hidden] == clean_lse[:, :, hidden]).all()
        if np.isnan(poison):
            assert np.isnan(o[:, ~hidden].astype(np.float32)).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, None])
@pytest.mark.parametrize("window", [(-1, -1), (70, -1), (70, 3)], ids=str)
@every_dtype
def test_o_of_16_bits_is_that_of_fp32_rounded(
    dtype: str, window: tuple[int, int], poison: float | None
) -> None:
    """Some rows do not see infinity or NaN in V, and O is completed by them."""
    p = AttentionProblem(1, 190, 190, 2, 1, D_HEAD, dtype, causal=True, window_size=window)
    wide = replace(p, o_dtype="float32")
    tensors = device_inputs(p)
    if poison is not None:
        tensors[2][:, 68] = poison
        tensors[2][:, 75, :, ::3] = -poison
    assert configs_for(wide) == configs_for(p)
    for config in configs_for(p):
        (o, lse), (wide_o, wide_lse) = run(p, tensors, config), run(wide, tensors, config)
        assert np.array_equal(
            wide_o.astype(o.dtype).astype(np.float32), o.astype(np.float32), equal_nan=True
        )
        assert (lse == wide_lse).all()
        finite = np.isfinite(wide_o)
        assert (wide_o[finite] != o.astype(np.float32)[finite]).any(), "rounded"


@pytest.mark.parametrize("q_dtype", DTYPES)
@pytest.mark.parametrize("is_poisoned", [False, True])
@pytest.mark.parametrize("d_head", [64, 128, 256, 512])
def test_o_of_any_type_beside_e4m3(d_head: int, is_poisoned: bool, q_dtype: str) -> None:
    """O of either type of 16 bits is that of fp32 rounded, whatever the type of Q is."""
    for seqlen_q, causal in ((1, False), (190, True)):
        p = AttentionProblem(1, seqlen_q, 190, 2, 1, d_head, E4M3, q_dtype, causal=causal)
        tensors = device_inputs(p)
        if is_poisoned:
            tensors[2][:, 68].view(torch.uint8)[..., ::3] = 0x7F
        types = {o: replace(p, o_dtype=o) for o in (*DTYPES, "float32")}
        configs = configs_for(p)
        assert configs
        for config in configs:
            found = {o: run(own, tensors, config) for o, own in types.items()}
            wide, lse = found["float32"]
            for own, own_lse in (found[o] for o in DTYPES):
                expected = wide.astype(own.dtype).astype(np.float32)
                assert np.array_equal(expected, own.astype(np.float32), equal_nan=True)
                assert (own_lse == lse).all()
            assert np.isnan(wide).any() == is_poisoned


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_that_no_row_sees(poison: float) -> None:
    """NaN is in keys beyond seqused_k, beyond a causal mask, and between ragged sequences."""
    used = AttentionProblem(2, 80, 200, 2, 1, D_HEAD, "bfloat16", seqused_k=(130, 5))
    ragged = AttentionProblem(
        2, 80, 100, 2, 1, D_HEAD, "bfloat16", cu_seqlens_k=(0, 100, 200), seqused_k=(70, 100)
    )
    for p, place in ((used, (0, slice(130, None))), (ragged, (slice(70, 100),))):
        for config in configs_for(p):
            clean = run(p, config=config)
            tensors = device_inputs(p)
            for tensor in tensors[1:]:
                tensor[place] = poison
            o, lse = run(p, tensors, config)
            assert o.tobytes() == clean[0].tobytes() and lse.tobytes() == clean[1].tobytes()


# ---- Heads ----


@pytest.mark.parametrize("ratio", [1, 3, 5, 7, 8, 12])
def test_grouped_heads(ratio: int) -> None:
    p = AttentionProblem(2, 70, 90, 2 * ratio, 2, 64, "bfloat16", causal=True)
    check_every_row(p)


# ---- Memory ----


def test_repeated_and_shared_inputs() -> None:
    """Keys have stride 0 over heads and over the batch, and V is a view of K."""
    p = AttentionProblem(2, 80, 100, 4, 4, D_HEAD, "float16")
    q, k, v = device_inputs(p)
    over_heads = k[:, :, :1].expand_as(k)
    over_batch = v[:1].expand_as(v)
    for config in configs_for(p):
        expected = run(p, [q, over_heads.contiguous(), over_batch.contiguous()], config)
        actual = run(p, [q, over_heads, over_batch], config)
        assert actual[0].tobytes() == expected[0].tobytes()
        shared, copied = run(p, [q, k, k], config), run(p, [q, k, k.clone()], config)
        assert shared[0].tobytes() == copied[0].tobytes()


@every_dtype
@pytest.mark.parametrize("tensor", range(4), ids=["q", "k", "v", "o"])
def test_odd_element_addresses(tensor: int, dtype: str) -> None:
    layouts = ["contiguous"] * 4
    layouts[tensor] = "shifted"
    p = AttentionProblem(1, 100, 90, 2, 1, D_HEAD, dtype, causal=True, layouts=tuple(layouts))
    check(p)
    check_every_row(p)


@pytest.mark.parametrize(
    "p",
    [
        AttentionProblem(2, 80, 100, 4, 2, 64, "bfloat16", causal=True),
        AttentionProblem(
            3, 95, 150, 4, 2, 64, "float16",
            cu_seqlens_q=(0, 70, 70, 161), cu_seqlens_k=(0, 40, 60, 210),
        ),
    ],
    ids=["padded", "ragged"],
)  # fmt: skip
def test_lse_of_any_strides(p: AttentionProblem) -> None:
    """LSE has all heads of a token side by side, with gaps, which stay as they are."""
    tensors, options = device_inputs(p), device_options(p)
    for config in configs_for(p):
        call = partial(flashattn.flash_attn_varlen_func, *tensors, **options, config=config)
        expected = call(return_lse=True)[1]
        tokens = expected.transpose(-2, -1).shape[:-1]
        wide = torch.full((*tokens, p.n_heads + 3), torch.nan, device="cuda")
        lse = wide[..., : p.n_heads].transpose(-2, -1)
        assert call(lse=lse)[1] is lse and torch.equal(lse, expected), str(config)
        assert wide[..., p.n_heads :].isnan().all(), str(config)


def test_strides_over_31_bits() -> None:
    p = AttentionProblem(2, 80, 100, 2, 1, 64, "bfloat16")
    far = 2**31 + p.n_heads * p.d_head  # a whole number of tokens, which some rows require
    _need_memory(3 * 2 * far)
    tensors = device_inputs(p)
    apart = []
    for tensor in tensors:
        buffer = torch.empty(far + tensor[0].numel(), dtype=tensor.dtype, device="cuda")
        spread = buffer.as_strided(tensor.shape, (far, *tensor.stride()[1:]))
        apart.append(spread.copy_(tensor))
    for config in configs_for(p):
        assert run(p, apart, config)[0].tobytes() == run(p, tensors, config)[0].tobytes()


@pytest.mark.parametrize("shape", [(70_000, 3, 1, 64), (1, 3, 70_000, 64)], ids=["batch", "heads"])
def test_more_than_65535(shape: tuple[int, ...]) -> None:
    q, k, v = _random(shape), _random(shape), _random(shape)
    _assert_dense(flashattn.flash_attn_func(q, k, v), q, k, v)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_more_failed_tiles_than_a_block_can_note(causal: bool) -> None:
    """SM90 notes the tiles whose fixed reference did not serve. Here the key in the last block that
    is walked exceeds it for one query in four. All sequences share K and V."""
    q = _random((70_000, 2, 3, 64))
    k, v = _random((1, 300, 3, 64)), _random((1, 301, 3, 64))[:, 1:]
    k[:, 0] *= 100
    shared = [x.expand(len(q), -1, -1, -1) for x in (k, v)]
    last = flashattn.flash_attn_func(q, *shared, causal=causal)[:, 1]  # sees every key
    _assert_dense(last[None], q[None, :, 1], k, v)


def test_more_than_31_bits_of_elements() -> None:
    seqlen, n_heads = 2**17 + 5, 128
    _need_memory(2 * 2 * seqlen * n_heads * D_HEAD)
    q = _random((1, seqlen, n_heads, D_HEAD))
    k, v = _random((1, 100, 8, D_HEAD)), _random((1, 100, 8, D_HEAD))
    o = flashattn.flash_attn_func(q, k, v)
    for part in (slice(0, 70), slice(-70, None)):
        k_all, v_all = (x.repeat_interleave(n_heads // 8, dim=2) for x in (k, v))
        _assert_dense(o[:, part], q[:, part], k_all, v_all)


def _need_memory(n_bytes: int) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < n_bytes + 2**30:
        pytest.skip(f"needs {n_bytes >> 30} GiB of CUDA memory, {free >> 30} are free")


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(len(shape) + shape[1])
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)


def _assert_dense(o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Checks full attention with too many heads and batches for the oracle's loops."""
    exact = _dense(q, k, v, torch.float64, torch.float64)
    naive = _dense(q, k, v, torch.float32, q.dtype)
    deviation = compare(download(o), download(exact), download(naive)[None])
    assert deviation.ok, f"{deviation.failures}; {deviation}"


def _dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, compute: torch.dtype, rounded: torch.dtype
) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2).to(compute) for x in (q, k, v))
    p = torch.softmax(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, dim=-1)
    o = p.to(rounded).to(compute) @ v
    return o.to(rounded).to(compute).transpose(1, 2)
