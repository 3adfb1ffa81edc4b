"""The arrays that a call takes and returns, of every library, and those that it refuses."""

from __future__ import annotations

import gc
import sys

import absent_device
import flashattn
import numpy as np
import pytest
from flashattn import flash_attn_func, flash_attn_varlen_func, flash_combine
from foreign_arrays import (
    CudaArray,
    DLPackArray,
    InterfaceArray,
    OldDLPackArray,
    TorchTensor,
    torch_module,
)
from memory import DTYPES, Guarded, arrange, dtype_of
from problems import AttentionProblem, configs_for, forward_kernels, make_inputs

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def _inputs(dtype: str = "float32") -> list[np.ndarray]:
    return make_inputs(AttentionProblem(2, 9, 14, 4, 2, 16, dtype))


# ---- What comes back ----


@every_dtype
def test_numpy(dtype: str) -> None:
    q, k, v = _inputs(dtype)
    o = flash_attn_func(q, k, v)
    assert type(o) is np.ndarray and o.dtype == q.dtype and o.shape == q.shape
    o, lse = flash_attn_func(q, k, v, return_lse=True)
    assert lse.dtype == np.float32 and lse.shape == (2, 4, 9)


def test_ragged_shapes() -> None:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in _inputs())
    lengths = {"cu_seqlens_q": [0, 4, 18], "cu_seqlens_k": [0, 14, 28]}
    longest = {"max_seqlen_q": 14, "max_seqlen_k": 14}
    o, lse = flash_attn_varlen_func(q, k, v, **lengths, **longest, return_lse=True)
    assert o.shape == (18, 4, 16) and lse.shape == (4, 18)


@every_dtype
def test_out_is_filled_and_returned(dtype: str) -> None:
    q, k, v = _inputs(dtype)
    out = arrange(np.zeros_like(q), "padded")
    assert flash_attn_func(q, k, v, out=out) is out
    assert (out == flash_attn_func(q, k, v)).all()


def test_out_of_any_layout() -> None:
    q, k, v = _inputs()
    expected = flash_attn_func(q, k, v)
    for layout in ("padded", "heads_first", "unaligned"):
        out = arrange(np.zeros_like(q), layout)
        assert (flash_attn_func(q, k, v, out=out) == expected).all()


@pytest.mark.parametrize("producer", [DLPackArray, OldDLPackArray])
@every_dtype
def test_dlpack(dtype: str, producer: type) -> None:
    q, k, v = _inputs(dtype)
    foreign = [producer(x) for x in (q, k, v)]
    assert (flash_attn_func(*foreign) == flash_attn_func(q, k, v)).all()
    gc.collect()
    assert [x.released for x in foreign] == [1, 1, 1]


def test_dlpack_of_numpy_itself() -> None:
    q, k, v = _inputs()

    class Exporter:
        def __init__(self, array):
            self.__dlpack__ = array.__dlpack__

    assert (flash_attn_func(*map(Exporter, (q, k, v))) == flash_attn_func(q, k, v)).all()


def test_dlpack_offset_strides_and_pinned_memory() -> None:
    q, k, v = _inputs()
    expected = flash_attn_func(q, k, v)
    foreign = [
        DLPackArray(q, byte_offset=4096),
        DLPackArray(arrange(k, "padded")),
        DLPackArray(v, compact=True, device=(3, 0)),
    ]
    assert (flash_attn_func(*foreign) == expected).all()


def test_array_interface() -> None:
    q, k, v = _inputs()
    foreign = [InterfaceArray(q), InterfaceArray(arrange(k, "padded")), InterfaceArray(v)]
    assert (flash_attn_func(*foreign) == flash_attn_func(q, k, v)).all()


def test_array_interface_hides_bfloat16_unless_the_dtype_says_so() -> None:
    q, k, v = _inputs("bfloat16")
    with pytest.raises(ValueError, match="q is void16|q is V2|q is void"):
        flash_attn_func(*map(InterfaceArray, (q, k, v)))
    named = [InterfaceArray(x) for x in (q, k, v)]
    for x in named:
        x.dtype = dtype_of("bfloat16")
    assert (flash_attn_func(*named) == flash_attn_func(q, k, v)).all()


@every_dtype
def test_torch(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_module())
    q, k, v = _inputs(dtype)
    o, lse = flash_attn_func(*map(TorchTensor, (q, k, v)), return_lse=True)
    expected, expected_lse = flash_attn_func(q, k, v, return_lse=True)
    assert isinstance(o, TorchTensor) and isinstance(lse, TorchTensor)
    assert (o.array == expected).all() and (lse.array == expected_lse).all()


def test_kinds_may_be_mixed() -> None:
    q, k, v = _inputs()
    assert (flash_attn_func(q, DLPackArray(k), InterfaceArray(v)) == flash_attn_func(q, k, v)).all()


@pytest.mark.parametrize("lengths", [[9, 0], (9, 0), np.array([9, 0], np.int32)], ids=repr)
def test_lengths_may_be_sequences(lengths: object) -> None:
    q, k, v = _inputs()
    o = flash_attn_func(q, k, v, seqused_k=lengths)
    assert (o[1] == 0).all() and (o[0] == flash_attn_func(q, k[:, :9], v[:, :9])[0]).all()


def test_padded_queries_over_ragged_keys() -> None:
    q, k, v = _inputs()
    ragged = [x.reshape(-1, *x.shape[2:]) for x in (k, v)]
    o = flash_attn_varlen_func(
        q,
        *ragged,
        cu_seqlens_q=None,
        max_seqlen_q=None,
        cu_seqlens_k=[0, 14, 28],
        max_seqlen_k=14,
    )
    assert (o == flash_attn_func(q, k, v)).all()


def test_k_may_hold_more_tokens_than_its_lengths_cover() -> None:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in _inputs())
    k[20:] = np.nan
    o = flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q=[0, 18],
        cu_seqlens_k=[0, 20],
        max_seqlen_q=18,
        max_seqlen_k=20,
    )
    assert np.isfinite(o).all()


def test_strides_of_single_elements_do_not_matter() -> None:
    q = np.ones((2, 1, 1, 8), np.float32)[:1, ::-1, ::-1]
    assert (flash_attn_func(q, q, q) == 1).all()
    narrow = np.ones((1, 3, 2, 5), np.float32)[..., ::7]
    assert (flash_attn_func(narrow, narrow, narrow) == 1).all()


# ---- What is refused ----


def _refused(error: type, match: str, *arrays: object, **options: object) -> None:
    with pytest.raises(error, match=match):
        flash_attn_func(*arrays, **options)


def test_shapes_that_do_not_fit() -> None:
    q, k, v = _inputs()
    _refused(ValueError, r"q has 3 axes, not 4: \(9, 4, 16\)", q[0], k, v)
    _refused(ValueError, r"v has shape \(2, 13, 2, 16\), k has \(2, 14, 2, 16\)", q, k, v[:, 1:])
    _refused(ValueError, r"k has d_head \(last axis\) 8, q has 16", q, k[..., :8], v[..., :8])
    _refused(ValueError, r"k has batch \(first axis\) 1, q has 2", q, k[:1], v[:1])
    _refused(ValueError, "n_heads is 3: not a multiple of n_heads_kv, 2", q[:, :, :3], k, v)
    _refused(ValueError, "d_head is 0", q[..., :0], k[..., :0], v[..., :0])
    _refused(ValueError, "n_heads is 0", q[:, :, :0], k, v)
    _refused(ValueError, "n_heads_kv is 0", q, k[:, :, :0], v[:, :, :0])


def test_types_that_do_not_fit() -> None:
    q, k, v = _inputs()
    _refused(ValueError, "q is float64", *(x.astype(np.float64) for x in (q, k, v)))
    _refused(NotImplementedError, "one of K and V is of", q, k, v.astype(dtype_of("float8_e4m3fn")))
    _refused(NotImplementedError, "if K and V are FP32, Q and O can be", q.astype(np.float16), k, v)
    _refused(TypeError, "v is of type list", q, k, v.tolist())
    _refused(TypeError, "q is of type NoneType", None, k, v)
    swapped = k.astype(k.dtype.newbyteorder())
    _refused(ValueError, "k has the other byte order: >f4", q, swapped, v)
    _refused(ValueError, "byte order", InterfaceArray(q, typestr=">f4"), k, v)


@pytest.mark.parametrize(
    "strides", [(), (4,), (64, 4), (128, 64, 4), (0, 3584, 128, 64, 4)], ids=len
)
def test_array_interface_with_other_strides_than_axes(strides: tuple) -> None:
    q, k, v = _inputs()
    match = f"k.__array_interface__ has {len(strides)} strides for 4 axes"
    _refused(ValueError, match, q, InterfaceArray(k, strides=strides), v)


def test_array_interface_without_an_address() -> None:
    q, k, v = _inputs()
    for data in (None, bytes(2)):
        match = "does not give the address of its data in __array_interface__"
        _refused(ValueError, match, q, k, InterfaceArray(v, data=data))


def test_masks_that_would_be_ignored() -> None:
    q, k, v = _inputs()
    masked = np.ma.masked_array(k, mask=k < 0)
    _refused(ValueError, r"k is a masked array.*k.filled", q, masked, v)
    _refused(ValueError, "q is a masked array", np.ma.masked_array(q), k, v)
    _refused(ValueError, "out is a masked array", q, k, v, out=np.ma.masked_array(np.zeros_like(q)))
    used = np.ma.masked_array(np.array([1, 2], np.int32), mask=[True, False])
    _refused(ValueError, "seqused_k is a masked array", q, k, v, seqused_k=used)
    mask = InterfaceArray(np.zeros(v.shape, bool))
    _refused(ValueError, "v has a mask in __array_interface__", q, k, InterfaceArray(v, mask=mask))


def test_layouts_that_are_not_served() -> None:
    q, k, v = _inputs()
    wide = np.zeros((2, 14, 2, 32), np.float32)
    _refused(
        ValueError, r"k is not contiguous along its innermost axis \(stride 2", q, wide[..., ::2], v
    )
    _refused(ValueError, r"stride_seq is -32: negative", q, k[:, ::-1], v)
    bytes_apart = np.ndarray((2, 14, 2, 16), np.float32, bytes(8000), 0, (1794, 128, 64, 4))
    _refused(ValueError, "v has a stride of 1794 bytes", q, k, bytes_apart)


def test_out_that_does_not_fit() -> None:
    q, k, v = _inputs()
    read_only = np.zeros_like(q)
    read_only.flags.writeable = False
    _refused(ValueError, "out is read-only", q, k, v, out=read_only)
    _refused(ValueError, "out has shape", q, k, v, out=np.zeros_like(k))
    narrow = np.zeros_like(q, np.float16)
    _refused(NotImplementedError, "if K and V are FP32, Q and O can be", q, k, v, out=narrow)
    _refused(ValueError, "out overlaps itself: ", q, k, v, out=_repeating(q))
    _refused(ValueError, "o overlaps q: ", q, k, v, out=q)
    _refused(ValueError, "out is read-only", q, k, v, out=DLPackArray(np.zeros_like(q), flags=1))


def _repeating(like: np.ndarray) -> np.ndarray:
    out = np.broadcast_to(like[:1], like.shape)
    out.flags.writeable = True
    return out


def test_dlpack_that_cannot_be_read() -> None:
    q, k, v = _inputs()
    _refused(ValueError, "q is on DLPack device type 7", DLPackArray(q, device=(7, 0)), k, v)
    _refused(ValueError, "k has elements of 4 lanes", q, DLPackArray(k, lanes=4), v)
    _refused(ValueError, "q is float64", DLPackArray(q, code=(2, 64)), k, v)
    _refused(ValueError, "v.__dlpack__.. speaks DLPack 2.0", q, k, DLPackArray(v, major=2))
    _refused(
        ValueError, "capsule named b'used_dltensor'", DLPackArray(q, capsule=b"used_dltensor"), k, v
    )


def test_cuda_arrays_get_the_librarys_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = _inputs()
    answer = absent_device.MESSAGE
    on_cuda = [DLPackArray(x, device=(2, absent_device.ORDINAL)) for x in (q, k, v)]
    _refused(flashattn.FlashAttnError, answer, *on_cuda)
    monkeypatch.setitem(sys.modules, "torch", torch_module())
    tensors = [TorchTensor(x, "cuda", absent_device.ORDINAL) for x in (q, k, v)]
    _refused(flashattn.FlashAttnError, answer, *tensors)
    _refused(
        ValueError, f"k is on the CPU, q on CUDA device {absent_device.ORDINAL}", tensors[0], k, v
    )
    _refused(ValueError, "neither the CPU nor a CUDA", TorchTensor(q, "xpu", 0), k, v)


@pytest.mark.skipif(bool(flashattn.cuda_devices()), reason="for machines without a CUDA device")
def test_cuda_array_interface_gets_the_librarys_own_answer() -> None:
    arrays = [CudaArray((1, 4, 2, 16))] * 3
    _refused(flashattn.FlashAttnError, "device is the current CUDA device", *arrays)


def test_arrays_of_a_call_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (CudaArray((1, 4, 2, 16), stream=stream) for stream in (5, None, 7))
    _refused(ValueError, "v is on the CUDA stream 0x7, the call on 0x5", q, k, v)
    monkeypatch.setitem(sys.modules, "torch", torch_module(stream=0))
    tensor = TorchTensor(_inputs()[0], "cuda", 0)
    _refused(ValueError, "k is on the CUDA stream 0x5, the call on 0x0", tensor, q, k)


def test_lengths_beside_cuda_arrays_are_arrays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashattn._problem.device_info", lambda number: None)
    q, k, v = (DLPackArray(x, device=(2, absent_device.ORDINAL)) for x in _inputs())
    complaint = "seqused_k is of type list, and q is in CUDA memory"
    _refused(ValueError, complaint, q, k, v, seqused_k=[1, 2])
    lengths = np.array([1, 2], np.int32)
    _refused(ValueError, "seqused_k is on the CPU", q, k, v, seqused_k=lengths)


def test_cuda_arrays_without_torch_need_their_results_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flashattn._problem.device_info", lambda number: None)
    q, k, v = (DLPackArray(x, device=(2, absent_device.ORDINAL)) for x in _inputs())
    _refused(ValueError, "DLPackArray in CUDA memory needs .* out=", q, k, v)
    _refused(ValueError, "needs .* lse=", q, k, v, out=q, return_lse=True)


@every_dtype
def test_lse_is_filled_and_returned(dtype: str) -> None:
    q, k, v = _inputs(dtype)
    expected = flash_attn_func(q, k, v, return_lse=True)[1]
    lse = np.empty_like(expected)
    assert flash_attn_func(q, k, v, lse=lse)[1] is lse
    assert (lse == expected).all()
    _refused(ValueError, "lse has shape", q, k, v, lse=lse[:1])
    _refused(ValueError, "lse is float64, not", q, k, v, lse=lse.astype(float))
    lse.flags.writeable = False
    _refused(ValueError, "lse is read-only", q, k, v, lse=lse)


@pytest.mark.parametrize("layout", ["padded", "heads_first"])
@every_dtype
def test_lse_of_any_strides(dtype: str, layout: str) -> None:
    q, k, v = _inputs(dtype)
    expected = flash_attn_func(q, k, v, return_lse=True)[1]
    for config in configs_for(AttentionProblem(2, 9, 14, 4, 2, 16, dtype)):
        lse = Guarded(expected.shape, np.float32, layout)
        flash_attn_func(q, k, v, lse=lse.array, config=config)
        np.testing.assert_allclose(lse.take(), expected, rtol=1e-2, atol=1e-2)
    by_tokens = np.empty((2, 9, 4), np.float32).swapaxes(1, 2)
    assert (flash_attn_func(q, k, v, lse=by_tokens)[1] == expected).all()


def test_lse_of_any_strides_of_a_ragged_batch() -> None:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in _inputs())
    lengths = {"cu_seqlens_q": [0, 4, 18], "cu_seqlens_k": [0, 14, 28]}
    options = {**lengths, "max_seqlen_q": 14, "max_seqlen_k": 14}
    expected = flash_attn_varlen_func(q, k, v, **options, return_lse=True)[1]
    by_tokens = np.full((18, 7), np.nan, np.float32)
    assert (flash_attn_varlen_func(q, k, v, **options, lse=by_tokens.T[2:6])[1] == expected).all()
    assert np.isnan(by_tokens[:, :2]).all() and np.isnan(by_tokens[:, 6:]).all()


def test_lse_that_the_strides_of_c_cannot_say() -> None:
    """In the C API strides that are all 0 mean contiguous."""
    q, k, v = _inputs()
    single = np.zeros(1, np.float32)
    repeated = np.lib.stride_tricks.as_strided(single, (2, 4, 9), (0, 0, 0))
    _refused(ValueError, "lse overlaps itself", q, k, v, lse=repeated)
    _refused(
        ValueError, "stride_seq is -1: negative", q, k, v, lse=np.empty((2, 4, 9), "f4")[..., ::-1]
    )
    one = [x[:1, :1, :1] for x in (q, k, v)]
    lse = np.empty((3, 3, 3), np.float32)[1:2, 1:2, 1:2]
    assert flash_attn_func(*one, lse=lse)[1] == flash_attn_func(*one, return_lse=True)[1]


def test_batch_invariance_changes_nothing_on_the_cpu() -> None:
    arrays = _inputs()
    expected = flash_attn_func(*arrays)
    assert (flash_attn_func(*arrays, batch_invariant=True) == expected).all()


def test_gradients_are_refused_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [TorchTensor(x, requires_grad=True) for x in _inputs()]
    monkeypatch.setitem(sys.modules, "torch", torch_module())
    _refused(NotImplementedError, "q requires a gradient", *tensors)
    monkeypatch.setitem(sys.modules, "torch", torch_module(grad_enabled=False))
    flash_attn_func(*tensors)


def test_values_that_mean_something_else_in_c() -> None:
    """In the C API 0 means the default, and small doubles become 0 in float32."""
    arrays = _inputs()
    _refused(ValueError, "softmax_scale is 0.0", *arrays, softmax_scale=0.0)
    _refused(ValueError, "softmax_scale is 1e-60", *arrays, softmax_scale=1e-60)
    _refused(ValueError, "softcap is 1e-60", *arrays, softcap=1e-60)
    _refused(ValueError, "softmax_scale is -1", *arrays, softmax_scale=-1.0)
    _refused(ValueError, "softmax_scale is inf", *arrays, softmax_scale=1e60)
    _refused(ValueError, "softcap is -1", *arrays, softcap=-1.0)


@pytest.mark.parametrize("window", [3, (1,), (1, 2, 3), (1.5, 2), None, "ab"], ids=repr)
def test_window_that_is_no_pair(window: object) -> None:
    _refused(ValueError, "window_size is", *_inputs(), window_size=window)


def test_window_values() -> None:
    arrays = _inputs()
    _refused(ValueError, "window_left is -2", *arrays, window_size=(-2, 0))
    _refused(ValueError, "does not fit 64 bits", *arrays, window_size=(0, 2**70))
    flash_attn_func(*arrays, window_size=(np.int64(3), 2**62))


@pytest.mark.parametrize("value", ["1", [1.0], np.ones(2, np.float32), np.ones(0), 1j, object()])
@pytest.mark.parametrize("name", ["softmax_scale", "softcap"])
def test_what_is_no_number_is_refused_by_name(name: str, value: object) -> None:
    _refused(TypeError, f"{name} is of type {type(value).__name__}: not a number", *_inputs(),
             **{name: value})  # fmt: skip


@pytest.mark.parametrize("value", ["no", b"", np.ones(2, bool)])
@pytest.mark.parametrize("name", ["causal", "return_lse"])
def test_what_is_no_bool_is_refused_by_name(name: str, value: object) -> None:
    """Text would be true unless it is empty."""
    _refused(ValueError, f"{name} is of type {type(value).__name__}: not a bool", *_inputs(),
             **{name: value})  # fmt: skip


def test_a_softcap_of_none_is_refused_by_name() -> None:
    _refused(TypeError, "softcap is of type NoneType: not a number", *_inputs(), softcap=None)


def test_lengths_that_do_not_fit() -> None:
    q, k, v = _inputs()
    _refused(ValueError, "seqused_k has 3 values, not 2", q, k, v, seqused_k=[1, 2, 3])
    _refused(ValueError, "seqused_k is int64, not int32", q, k, v, seqused_k=np.array([1, 2]))
    _refused(ValueError, "not a flat sequence of integers", q, k, v, seqused_k=[1.5, 2])
    _refused(ValueError, "does not fit 32 bits", q, k, v, seqused_k=[2**40, 2])
    _refused(ValueError, r"seqused_k\[1\] is 15", q, k, v, seqused_k=[1, 15])
    two_axes = np.zeros((2, 1), np.int32)
    _refused(ValueError, "seqused_k has 2 axes", q, k, v, seqused_k=two_axes)
    every_other = np.zeros(4, np.int32)[::2]
    _refused(ValueError, "seqused_k is not contiguous", q, k, v, seqused_k=every_other)


@pytest.mark.parametrize(
    "change, match",
    [
        ({"cu_seqlens_q": [0, 4, 17]}, "cu_seqlens_q ends at 17, q has 18 tokens"),
        ({"cu_seqlens_k": [0, 14, 29]}, "cu_seqlens_k ends at 29, k has 28 tokens"),
        ({"cu_seqlens_k": [0, 28]}, "cu_seqlens_k has 2 values, not 3"),
        ({"cu_seqlens_q": []}, "cu_seqlens_q is empty"),
        ({"max_seqlen_q": None}, "cu_seqlens_q is given without max_seqlen_q"),
        ({"max_seqlen_k": 13}, r"cu_seqlens_k\[1\].*longer than 13"),
        ({"max_seqlen_q": -1}, "seqlen_q is -1"),
        ({"cu_seqlens_q": [0, 19, 18]}, r"cu_seqlens_q\[1\]|cu_seqlens_q\[2\]"),
        ({"max_seqlen_q": 2**70}, "does not fit 64 bits"),
    ],
    ids=str,
)  # fmt: skip
def test_ragged_lengths_that_do_not_fit(change: dict, match: str) -> None:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in _inputs())
    options = {
        "cu_seqlens_q": [0, 4, 18],
        "cu_seqlens_k": [0, 14, 28],
        "max_seqlen_q": 14,
        "max_seqlen_k": 14,
        **change,
    }
    with pytest.raises(ValueError, match=match):
        flash_attn_varlen_func(q, k, v, **options)


def test_everything_after_v_is_keyword_only() -> None:
    q, k, v = _inputs()
    for function in (flash_attn_func, flash_attn_varlen_func):
        with pytest.raises(TypeError, match="positional"):
            function(q, k, v, None)
    with pytest.raises(TypeError, match="cu_seqlens_q"):
        flash_attn_varlen_func(q, k, v)


def test_errors_are_also_the_packages_own() -> None:
    q, k, v = _inputs()
    with pytest.raises(flashattn.FlashAttnValueError) as error:
        flash_attn_func(q, k, v, softcap=-1.0)
    assert error.value.status == 100
    assert issubclass(flashattn.FlashAttnMemoryError, MemoryError)
    assert issubclass(flashattn.FlashAttnNotImplementedError, NotImplementedError)
    for name in ("Value", "Memory", "NotImplemented"):
        kind = getattr(flashattn, f"FlashAttn{name}Error")
        assert issubclass(kind, flashattn.FlashAttnError)


# ---- config=, selection, support ----


def test_config_by_object_and_by_short_form() -> None:
    arrays = _inputs()
    for kernel in forward_kernels():
        if kernel.config.dtype != flashattn.DType.FP32 or not kernel.is_runnable:
            continue
        by_object = flash_attn_func(*arrays, config=kernel.config)
        assert (by_object == flash_attn_func(*arrays, config=str(kernel.config))).all()


def test_config_that_is_refused() -> None:
    arrays = _inputs()
    absent = "REFERENCE (FP32, 3, 5, 7)"
    for kind in (NotImplementedError, LookupError):
        _refused(kind, "without a kernel", *arrays, config=absent)
    support = flashattn.query_support(*arrays, config=absent)
    assert not support and "without a kernel" in support.reason
    _refused(ValueError, "position", *arrays, config="REFERENCE (")
    _refused(ValueError, "B_r is 0", *arrays, config="REFERENCE (FP32, any, 0, 1)")
    half = next(k for k in forward_kernels() if k.config.dtype == flashattn.DType.FP16)
    _refused(NotImplementedError, "does not serve this problem", *arrays, config=half.config)


def test_support_tells_the_truth() -> None:
    arrays = _inputs()
    assert flashattn.query_support(*arrays, causal=True)
    for kernel in flashattn.kernels():
        support = flashattn.query_support(*arrays, config=kernel.config)
        if support:
            flash_attn_func(*arrays, config=kernel.config)
        else:
            with pytest.raises(NotImplementedError) as error:
                flash_attn_func(*arrays, config=kernel.config)
            assert str(error.value) == support.reason


def test_selection_is_what_runs() -> None:
    arrays = _inputs("float16")
    selection = flashattn.select_config(*arrays, causal=True)
    o = flash_attn_func(*arrays, causal=True, config=selection.config)
    assert (o == flash_attn_func(*arrays, causal=True)).all()


# ---- flash_combine ----


def test_combine_shapes_that_do_not_fit() -> None:
    o, lse = np.zeros((3, 2, 5, 4, 8), np.float32), np.zeros((3, 2, 4, 5), np.float32)
    for change, match in (
        ({"lse_partial": lse[:2]}, r"lse_partial has shape \(2, 2, 4, 5\)"),
        ({"lse_partial": lse.astype(np.float16)}, "lse_partial is float16"),
        ({"lse_partial": lse.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)}, "contiguous"),
        ({"lse": np.zeros((2, 5, 4), np.float32).swapaxes(1, 2)}, "lse is not contiguous"),
        ({"out": np.broadcast_to(o[0, :1], o[0].shape)}, "out is read-only"),
        ({"out": _repeating(o[0])}, "out overlaps itself"),
        ({"o_partial": o[0, 0]}, "o_partial has 3 axes, not 4 or 5"),
        ({"o_partial": o[0]}, r"lse_partial has shape \(3, 2, 4, 5\), not \(2, 4, 5\)"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
        ({"out": np.zeros((2, 5, 4, 9), np.float32)}, "out has shape"),
        ({"out": np.zeros((2, 5, 4, 8), np.float16), "dtype": "float32"}, "out is float16"),
    ):
        arguments = {"o_partial": o, "lse_partial": lse, **change}
        with pytest.raises(ValueError, match=match):
            flash_combine(arguments.pop("o_partial"), arguments.pop("lse_partial"), **arguments)
