"""What flashattn.torch_ops refuses, by the functions and by the operators: with the words and the
exceptions of the functions for all arrays, before anything is written.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashattn  # noqa: E402
from flashattn import _abi, torch_ops  # noqa: E402
from torch_calls import Recorded  # noqa: E402

ops = torch.ops.flashattn
# The extension refuses nothing: what it does not serve goes the way without it.
every_way = pytest.mark.parametrize("way", ["function", "operator"])
LENGTHS = torch.tensor([7, 3], dtype=torch.int32)
TABLE = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
CU_SEQLENS = torch.tensor([0, 4, 10], dtype=torch.int32)
E4M3 = torch.float8_e4m3fn


def _padded() -> dict[str, Any]:
    return {
        "q": torch.randn(2, 5, 4, 8), "k": torch.randn(2, 7, 2, 8), "v": torch.randn(2, 7, 2, 8)
    }  # fmt: skip


def _paged() -> dict[str, Any]:
    return {
        "q": torch.randn(2, 5, 4, 8), "k": torch.randn(4, 4, 2, 8), "v": torch.randn(4, 4, 2, 8),
        "seqused_k": LENGTHS, "page_table": TABLE,
    }  # fmt: skip


def _ragged() -> dict[str, Any]:
    return {
        "q": torch.randn(10, 4, 8), "k": torch.randn(10, 2, 8), "v": torch.randn(10, 2, 8),
        "cu_seqlens_q": CU_SEQLENS, "cu_seqlens_k": CU_SEQLENS,
        "max_seqlen_q": 6, "max_seqlen_k": 6,
    }  # fmt: skip


def _call(package: Any, arguments: dict[str, Any]) -> Any:
    name = "flash_attn_varlen_func" if "cu_seqlens_q" in arguments else "flash_attn_func"
    return getattr(package, name)(**arguments)


# Each has what is changed in a sound call, and a part of the message. Values may be functions of
# the call.
REFUSALS: dict[str, tuple[Callable, dict[str, Any], str]] = {
    "multiprocessors": (_padded, {"n_multiprocessors": 4}, "n_multiprocessors is 4, and device is"),
    "too many": (_padded, {"n_multiprocessors": 2**31}, "n_multiprocessors is 2147483648: not"),
    "ragged multiprocessors": (_ragged, {"n_multiprocessors": -1}, "n_multiprocessors is -1: not"),
    "paged multiprocessors": (_paged, {"n_multiprocessors": 4}, "n_multiprocessors is 4, and"),
    "axes of q": (_padded, {"q": torch.randn(5, 4, 8)}, "q has 3 axes, not 4"),
    "axes of k": (_padded, {"k": torch.randn(7, 2, 8), "v": torch.randn(7, 2, 8)}, "k has 3 axes"),
    "batch": (_padded, {"q": torch.randn(3, 5, 4, 8)}, r"k has batch \(first axis\) 2"),
    "d_head": (_padded, {"q": torch.randn(2, 5, 4, 16)}, "k has d_head"),
    "shape of v": (_padded, {"v": torch.randn(2, 7, 1, 8)}, "v has shape"),
    "type of q": (_padded, {"q": torch.randn(2, 5, 4, 8).double()}, "q is float64"),
    "type of k": (_padded, {"k": torch.ones(2, 7, 2, 8, dtype=torch.int32)}, "k is int32"),
    "type of v": (_padded, {"v": torch.ones(2, 7, 2, 8, dtype=torch.int32)}, "v is int32"),
    "stride": (_padded, {"k": torch.randn(2, 7, 2, 16)[..., ::2]}, "k is not contiguous along"),
    "sparse": (_padded, {"k": torch.ones(2, 7, 2, 8).to_sparse()}, "k has the layout torch.spars"),
    "nested": (
        _padded, {"v": torch.nested.nested_tensor([torch.ones(7, 2, 8)] * 2)}, "v is a nested ten",
    ),
    "heads": (_padded, {"q": torch.randn(2, 5, 3, 8)}, "n_heads is 3: not a multiple"),
    "e4m3 of q": (_padded, {"q": torch.ones(2, 5, 4, 8).to(E4M3)}, "q.dtype is FLASH_DTYPE_E4M3"),
    "scale 0": (_padded, {"softmax_scale": 0.0}, "softmax_scale is 0.0, which is 0 in float32"),
    "scale of 1e-50": (_padded, {"softmax_scale": 1e-50}, "softmax_scale is 1e-50"),
    "scale of 1e50": (_padded, {"softmax_scale": 1e50}, "softmax_scale is inf"),
    "negative scale": (_padded, {"softmax_scale": -1.0}, "softmax_scale is -1"),
    "scale NaN": (_padded, {"softmax_scale": float("nan")}, "softmax_scale is nan"),
    "softcap of 1e-50": (_padded, {"softcap": 1e-50}, "softcap is 1e-50, which is 0 in float32"),
    "negative softcap": (_padded, {"softcap": -3.0}, "softcap is -3"),
    "window": (_padded, {"window_size": (-2, 0)}, "window_left is -2"),
    "number of sinks": (_padded, {"sinks": torch.zeros(2)}, r"sinks has shape \(2,\), not \(4,\)"),
    "type of sinks": (_padded, {"sinks": torch.zeros(4).int()}, "sinks is int32: not one of"),
    "type of lengths": (_padded, {"seqused_k": LENGTHS.long()}, "seqused_k is int64, not int32"),
    "number of lengths": (_padded, {"seqused_k": LENGTHS[:1]}, "seqused_k has 1 values, not 2"),
    "axes of lengths": (_padded, {"seqused_k": LENGTHS[None]}, "seqused_k has 2 axes"),
    "gaps in lengths": (
        _padded, {"seqused_q": torch.zeros(4, dtype=torch.int32)[::2]}, "seqused_q is not contig",
    ),
    "lengths": (_padded, {"seqused_k": LENGTHS + 5}, r"seqused_k\[0\] is 12: not within 0 ... 7"),
    "scales without e4m3": (_padded, {"k_descale": torch.ones(2, 2)}, "quant.k_scale is given"),
    "shape of scales": (_padded, {"k_descale": torch.ones(2, 4)}, r"k_descale has shape \(2, 4\)"),
    "type of scales": (_padded, {"v_descale": torch.ones(2, 2).half()}, "v_descale is float16"),
    "shape of out": (_padded, {"out": torch.empty(2, 5, 4, 9)}, "out has shape"),
    "type of out": (_padded, {"out": torch.empty(2, 5, 4, 8).double()}, "out is float64"),
    "out overlaps q": (_padded, {"out": lambda call: call["q"]}, "o overlaps q"),
    "out overlaps itself": (
        _padded, {"out": torch.empty(2, 5, 1, 8).expand(2, 5, 4, 8)}, "out overlaps itself",
    ),
    "out is nowhere contiguous": (
        _padded, {"out": torch.empty(2, 5, 4, 16)[..., ::2]}, "out is not contiguous along",
    ),
    "shape of lse": (_padded, {"lse": torch.empty(2, 5, 4)}, "lse has shape"),
    "type of lse": (_padded, {"lse": torch.empty(2, 4, 5).half()}, "lse is float16"),
    "lse repeats": (_padded, {"lse": torch.empty(1).expand(2, 4, 5)}, "lse overlaps itself"),
    "end of cu_seqlens_q": (_ragged, {"cu_seqlens_q": CU_SEQLENS - 1}, "cu_seqlens_q ends at 9"),
    "end of cu_seqlens_k": (
        _ragged, {"cu_seqlens_k": torch.tensor([0, 4, 11], dtype=torch.int32)},
        "cu_seqlens_k ends at 11, k has 10 tokens",
    ),
    "no cu_seqlens": (
        _ragged, {"cu_seqlens_q": torch.empty(0, dtype=torch.int32)}, "cu_seqlens_q is empty",
    ),
    "lengths in order": (
        _ragged, {"cu_seqlens_q": torch.tensor([0, 11, 10], dtype=torch.int32)},
        r"cu_seqlens_q\[1\]",
    ),
    "batches": (_ragged, {"cu_seqlens_k": CU_SEQLENS[:2]}, "cu_seqlens_k has 2 values, not 3"),
    "longest sequence": (_ragged, {"max_seqlen_q": 5}, "longer than 5, the call's bound"),
    "no longest sequence": (_ragged, {"max_seqlen_k": None}, "is given without max_seqlen_k"),
    "pages without lengths": (_paged, {"seqused_k": None}, "seqused_k and cu_seqlens_k are NULL"),
    "type of pages": (_paged, {"page_table": TABLE.long()}, "page_table is int64"),
    "axes of pages": (_paged, {"page_table": TABLE[0]}, "page_table has 1 axes, not 2"),
    "rows of pages": (_paged, {"page_table": TABLE[:1]}, "page_table has 1 rows for a batch of 2"),
    "stride of pages": (_paged, {"page_table": TABLE.T}, "page_table is not contiguous along"),
    "rows that repeat": (
        _paged, {"page_table": TABLE[:1].expand(2, 2)}, "page_table has rows of 2 ids, and 0 from",
    ),
    "pages of v": (_paged, {"v_page_table": TABLE[:, :1]}, "v_page_table has shape"),
    "no table": (
        _paged, {"page_table": None, "v_page_table": TABLE}, "v_page_table is given without",
    ),
    "page id": (_paged, {"page_table": TABLE + 3}, "page_table: page 1 of sequence 0"),
    "page rows": (_paged, {"page_rows": LENGTHS}, r"page_rows\[0\] is 7, page_table has 2 rows"),
    "page_indptr": (
        _paged, {"page_table": TABLE.flatten(), "page_indptr": CU_SEQLENS},
        "page_indptr ends at 10, page_table has 4 ids",
    ),
}  # fmt: skip


def _spoiled(name: str) -> dict[str, Any]:
    make, changes, _ = REFUSALS[name]
    arguments = make()
    for key, value in changes.items():
        arguments[key] = value(arguments) if callable(value) else value
    return arguments


@every_way
@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_that_of_the_other_functions(name: str, way: str) -> None:
    arguments = _spoiled(name)
    results = {n: arguments[n] for n in ("out", "lse") if n in arguments}
    before = {n: x.clone() for n, x in results.items()}
    with pytest.raises(Exception) as other:
        _call(flashattn, arguments)
    with pytest.raises(type(other.value), match=REFUSALS[name][2]) as refusal:
        if way == "operator":
            with Recorded():
                _call(torch_ops, arguments)
        else:
            _call(torch_ops, arguments)
    assert str(refusal.value) == str(other.value)
    assert getattr(refusal.value, "status", None) == getattr(other.value, "status", None)
    for n, x in results.items():
        np.testing.assert_array_equal(x.numpy(), before[n].numpy())


def test_status_is_that_of_the_library() -> None:
    q = torch.randn(1, 5, 3, 8)
    with pytest.raises(flashattn.FlashAttnValueError) as refusal:
        ops.fwd(q, q[:, :, :2], q[:, :, :2])
    assert refusal.value.status == _abi.FLASH_ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("value", [[7, 3], np.array([7, 3], np.int32)], ids=["list", "ndarray"])
def test_what_is_no_tensor(value: object) -> None:
    with pytest.raises(TypeError, match="seqused_k is a .*: not a torch tensor"):
        torch_ops.flash_attn_func(**_padded(), seqused_k=value)
    with pytest.raises(TypeError, match="q is a ndarray: not a torch tensor"):
        torch_ops.flash_attn_func(**{**_padded(), "q": np.zeros((2, 5, 4, 8), np.float32)})


def test_numbers_that_fit_nowhere() -> None:
    with pytest.raises(ValueError, match=r"window_size\[0\] is .* does not fit 64 bits"):
        torch_ops.flash_attn_func(**_padded(), window_size=(2**70, 0))
    with pytest.raises(ValueError, match="window_size is .*: not a pair of integers"):
        torch_ops.flash_attn_func(**_padded(), window_size=(1.5, 0))


# ---- Gradients ----


@every_way
@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse"])
def test_gradient_is_refused_and_the_message_says_what_to_do(name: str, way: str) -> None:
    arguments = {**_padded(), "out": torch.empty(2, 5, 4, 8), "lse": torch.empty(2, 4, 5)}
    arguments[name].requires_grad_()
    match = f"{name} requires a gradient.*use {name}.detach.. or torch.no_grad"
    with pytest.raises(NotImplementedError, match=match):
        if way == "operator":
            with Recorded():
                _call(torch_ops, arguments)
        else:
            _call(torch_ops, arguments)
    with torch.no_grad():
        o, _ = _call(torch_ops, arguments)
    assert not o.requires_grad or name == "out"


def test_gradient_of_keys_in_pages_is_refused() -> None:
    arguments = _paged()
    arguments["q"].requires_grad_()
    for return_lse in (False, True):
        with Recorded(), pytest.raises(NotImplementedError, match="q requires a gradient"):
            _call(torch_ops, {**arguments, "return_lse": return_lse})
    with torch.no_grad():
        assert not _call(torch_ops, arguments).requires_grad
    detached = {**arguments, "q": arguments["q"].detach()}
    assert not _call(torch_ops, detached).requires_grad


@every_way
def test_gradient_of_partial_results_is_refused(way: str) -> None:
    o, lse = torch.randn(2, 1, 5, 4, 8), torch.randn(2, 1, 4, 5, requires_grad=True)
    with pytest.raises(NotImplementedError, match="lse_partial requires a gradient"):
        if way == "operator":
            ops.combine(o, lse)
        else:
            torch_ops.flash_combine(o, lse)


@pytest.mark.parametrize("by_function", [True, False])
def test_tangents_are_refused(by_function: bool) -> None:
    q, k, v = _padded().values()

    def attend(q: torch.Tensor) -> torch.Tensor:
        return torch_ops.flash_attn_func(q, k, v) if by_function else ops.fwd(q, k, v)

    with pytest.raises(NotImplementedError, match="q has a tangent"):
        torch.func.jvp(attend, (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(NotImplementedError, match="q has a tangent"):
            attend(dual)
        assert torch.equal(attend(torch.autograd.forward_ad.unpack_dual(dual).primal), attend(q))


@every_way
def test_gradient_of_scales_is_refused(way: str) -> None:
    arguments = {**_padded(), "k_descale": torch.ones(2, 2, requires_grad=True)}
    arguments.update(k=arguments["k"].to(E4M3), v=arguments["v"].to(E4M3))
    with pytest.raises(NotImplementedError, match="k_descale requires a gradient"):
        if way == "operator":
            with Recorded():
                _call(torch_ops, arguments)
        else:
            _call(torch_ops, arguments)


# ---- Merging ----


@every_way
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"o_partial": torch.randn(1, 5, 4, 8)}, r"has shape \(2, 1, 4, 5\), not \(1, 4, 5\)"),
        ({"o_partial": torch.randn(2, 1, 5, 4, 8).double()}, "o_partial is float64"),
        ({"o_partial": torch.randn(2, 1, 5, 4, 16)[..., ::2]}, "o_partial is not contiguous along"),
        ({"lse_partial": torch.randn(2, 1, 5, 4)}, "lse_partial has shape"),
        ({"lse_partial": torch.randn(2, 1, 4, 5).half()}, "lse_partial is float16"),
        ({"lse_partial": torch.randn(1).expand(2, 1, 4, 5)}, "lse_partial is not contiguous"),
        ({"sinks": torch.randn(3)}, r"sinks has shape \(3,\), not \(4,\)"),
        ({"out": torch.randn(1, 5, 4, 9)}, "out has shape"),
        ({"out": torch.randn(1, 5, 4, 8).double()}, "out is float64"),
        ({"lse": torch.randn(1).expand(1, 4, 5)}, "lse is not contiguous"),
        ({"out": torch.empty(1, 5, 1, 8).expand(1, 5, 4, 8)}, "out overlaps itself|o.stride_head"),
    ],
)  # fmt: skip
def test_refusals_of_combine(changes: dict[str, Any], match: str, way: str) -> None:
    arguments = {"o_partial": torch.randn(2, 1, 5, 4, 8), "lse_partial": torch.randn(2, 1, 4, 5)}
    for key, value in changes.items():
        arguments[key] = value(arguments) if callable(value) else value
    named = dict(arguments)
    tensors = named.pop("o_partial"), named.pop("lse_partial")
    with pytest.raises(ValueError, match=match):
        if way == "operator":
            with Recorded():
                torch_ops.flash_combine(*tensors, **named)
        else:
            torch_ops.flash_combine(*tensors, **named)
