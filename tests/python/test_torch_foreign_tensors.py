"""Every tensor argument of every function for torch, given something that it is not for: sparse and
nested tensors, tensors without elements, without axes or without data, and what is no tensor. Each
is either served or refused by a message of this package that names an argument; none fails inside
torch or Python.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import flashattn  # noqa: E402
from flashattn import torch_ops  # noqa: E402
from flashattn.compat import fa2, fa3  # noqa: E402

REFUSALS = (ValueError, TypeError, NotImplementedError, flashattn.FlashAttnError)


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _padded(n_queries: int = 5) -> dict[str, Any]:
    return {
        "q": torch.randn(2, n_queries, 4, 8),
        "k": torch.randn(2, 7, 2, 8),
        "v": torch.randn(2, 7, 2, 8),
    }


def _flat() -> dict[str, Any]:
    return {name: torch.randn(10, heads, 8) for name, heads in (("q", 4), ("k", 2), ("v", 2))}


def _pool() -> dict[str, Any]:
    return {"k_cache": torch.randn(4, 16, 2, 8), "v_cache": torch.randn(4, 16, 2, 8)}


def _new(prefix: str = "") -> dict[str, Any]:
    return {f"k{prefix}": torch.randn(2, 1, 2, 8), f"v{prefix}": torch.randn(2, 1, 2, 8)}


ENDS = {"cu_seqlens_q": _ints(0, 4, 10), "cu_seqlens_k": _ints(0, 4, 10)}
LONGEST = {"max_seqlen_q": 6, "max_seqlen_k": 6}
TABLE = _ints(0, 1, 2, 3).view(2, 2)
ROTARY = {"rotary_cos": torch.randn(32, 4), "rotary_sin": torch.randn(32, 4)}


def _attention_options() -> dict[str, Any]:
    return {
        "sinks": torch.zeros(4), "alibi_slopes": torch.zeros(4), "seqused_q": _ints(5, 3),
        "seqused_k": _ints(7, 4), "leftpad_k": _ints(0, 1), "out": torch.empty(2, 5, 4, 8),
        "lse": torch.empty(2, 4, 5), "attn_mask": torch.zeros(5, 7),
    }  # fmt: skip


def _append_options() -> dict[str, Any]:
    return {
        "seqused_k": _ints(3, 9), "seqused_k_out": _ints(0, 0), "page_table": TABLE,
        "q": torch.randn(2, 1, 4, 8), "q_out": torch.empty(2, 1, 4, 8), **ROTARY,
        "rotary_start": _ints(3, 9),
    }  # fmt: skip


def _e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn)


def _scales() -> dict[str, Any]:
    return {"k_descale": torch.ones(2, 2), "v_descale": torch.ones(2, 2)}


def _coded(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "k": _e4m3(arguments["k"]), "v": _e4m3(arguments["v"]), **_scales()}


def _paged() -> dict[str, Any]:
    pool = torch.randn(4, 16, 2, 8)
    return {"q": torch.randn(2, 5, 4, 8), "k": pool, "v": pool, "seqused_k": _ints(7, 4)}


# Each call has a function and its arguments, which are sound together.
CALLS: dict[str, tuple[Callable, Callable[[], dict[str, Any]]]] = {
    "torch_ops.flash_attn_func": (
        torch_ops.flash_attn_func, lambda: {**_padded(), **_attention_options()},
    ),
    "torch_ops.flash_attn_func, plain": (torch_ops.flash_attn_func, _padded),
    "torch_ops.flash_attn_func, e4m3": (torch_ops.flash_attn_func, lambda: _coded(_padded())),
    "torch_ops.flash_attn_func, bits": (
        torch_ops.flash_attn_func,
        lambda: {**_padded(), "mask_bits": torch.ones(2, 4, 5, 1, dtype=torch.int32)},
    ),
    "torch_ops.flash_attn_func, pages": (
        torch_ops.flash_attn_func, lambda: {**_paged(), "page_table": TABLE, "v_page_table": TABLE},
    ),
    "torch_ops.flash_attn_func, flat pages": (
        torch_ops.flash_attn_func,
        lambda: {**_paged(), "page_table": _ints(0, 1, 2), "page_indptr": _ints(0, 1, 3)},
    ),
    "torch_ops.flash_attn_func, slots": (
        torch_ops.flash_attn_func, lambda: {**_paged(), "page_rows": _ints(3, 1)},
    ),
    "torch_ops.flash_attn_varlen_func": (
        torch_ops.flash_attn_varlen_func, lambda: {**_flat(), **ENDS, **LONGEST},
    ),
    "torch_ops.flash_attn_varlen_func, e4m3": (
        torch_ops.flash_attn_varlen_func, lambda: {**_coded(_flat()), **ENDS, **LONGEST},
    ),
    "torch_ops.flash_combine": (
        torch_ops.flash_combine,
        lambda: {
            "o_partial": torch.randn(3, 2, 5, 4, 8), "lse_partial": torch.randn(3, 2, 4, 5),
            "sinks": torch.zeros(4), "out": torch.empty(2, 5, 4, 8), "lse": torch.empty(2, 4, 5),
        },
    ),
    "torch_ops.flash_kv_append": (
        torch_ops.flash_kv_append, lambda: {**_new("_new"), **_pool(), **_append_options()},
    ),
    "torch_ops.flash_kv_append, slots": (
        torch_ops.flash_kv_append,
        lambda: {
            "k_new": torch.randn(2, 2, 8), "v_new": torch.randn(2, 2, 8), **_pool(),
            "slot_mapping": torch.tensor([3, 40]), **ROTARY, "q": torch.randn(2, 4, 8),
            "rotary_positions": torch.tensor([3, 8]),
        },
    ),
    "torch_ops.flash_kv_append, ragged, e4m3": (
        torch_ops.flash_kv_append,
        lambda: {
            "k_new": torch.randn(3, 2, 8), "v_new": torch.randn(3, 2, 8),
            "k_cache": _e4m3(torch.randn(2, 16, 2, 8)), "v_cache": _e4m3(torch.randn(2, 16, 2, 8)),
            "cu_seqlens_new": _ints(0, 1, 3), "seqused_k": _ints(3, 8), **_scales(),
        },
    ),
    "fa2.flash_attn_func": (
        fa2.flash_attn_func, lambda: {**_padded(), "alibi_slopes": torch.zeros(4)},
    ),
    "fa2.flash_attn_kvpacked_func": (
        fa2.flash_attn_kvpacked_func,
        lambda: {"q": torch.randn(2, 5, 4, 8), "kv": torch.randn(2, 7, 2, 2, 8)},
    ),
    "fa2.flash_attn_qkvpacked_func": (
        fa2.flash_attn_qkvpacked_func, lambda: {"qkv": torch.randn(2, 5, 3, 2, 8)},
    ),
    "fa2.flash_attn_varlen_func": (
        fa2.flash_attn_varlen_func, lambda: {**_flat(), **ENDS, **LONGEST},
    ),
    "fa2.flash_attn_varlen_func, pages": (
        fa2.flash_attn_varlen_func,
        lambda: {
            **_flat(), **ENDS, **LONGEST, "k": torch.randn(4, 16, 2, 8),
            "v": torch.randn(4, 16, 2, 8), "block_table": TABLE,
        },
    ),
    "fa2.flash_attn_varlen_kvpacked_func": (
        fa2.flash_attn_varlen_kvpacked_func,
        lambda: {"q": torch.randn(10, 4, 8), "kv": torch.randn(10, 2, 2, 8), **ENDS, **LONGEST},
    ),
    "fa2.flash_attn_varlen_qkvpacked_func": (
        fa2.flash_attn_varlen_qkvpacked_func,
        lambda: {
            "qkv": torch.randn(10, 3, 2, 8), "cu_seqlens": ENDS["cu_seqlens_q"], "max_seqlen": 6,
        },
    ),
    "fa2.flash_attn_with_kvcache": (
        fa2.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), **_pool(), **_new(), **ROTARY, "block_table": TABLE,
            "cache_seqlens": _ints(3, 9), "cache_leftpad": _ints(0, 1),
        },
    ),
    "fa2.flash_attn_with_kvcache, plain": (
        fa2.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), **_pool(), **_new(), **ROTARY, "block_table": TABLE,
            "cache_seqlens": _ints(3, 9),
        },
    ),
    "fa3.flash_attn_with_kvcache, plain": (
        fa3.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), "k_cache": torch.randn(2, 16, 2, 8),
            "v_cache": torch.randn(2, 16, 2, 8), **_new(), "cache_seqlens": _ints(3, 9),
        },
    ),
    "fa3.flash_attn_with_kvcache, no new tokens": (
        fa3.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), **_pool(), "page_table": TABLE,
            "cache_seqlens": _ints(3, 9),
        },
    ),
    "fa2.flash_attn_with_kvcache, lengths alone": (
        fa2.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), "k_cache": torch.randn(2, 16, 2, 8),
            "v_cache": torch.randn(2, 16, 2, 8), "cache_seqlens": _ints(3, 9),
        },
    ),
    "fa2.flash_attn_with_kvcache, entries": (
        fa2.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), **_pool(), "cache_seqlens": _ints(3, 9),
            "cache_batch_idx": _ints(3, 0),
        },
    ),
    "fa3.flash_attn_func": (
        fa3.flash_attn_func, lambda: {**_coded(_padded()), "q_descale": torch.ones(2, 2),
                                      "q": _e4m3(torch.randn(2, 5, 4, 8))},
    ),
    "fa3.flash_attn_qkvpacked_func": (
        fa3.flash_attn_qkvpacked_func, lambda: {"qkv": torch.randn(2, 5, 3, 2, 8)},
    ),
    "fa3.flash_attn_varlen_func": (
        fa3.flash_attn_varlen_func,
        lambda: {**_flat(), **ENDS, **LONGEST, "seqused_q": _ints(4, 2), "seqused_k": _ints(4, 2)},
    ),
    "fa3.flash_attn_with_kvcache": (
        fa3.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), **_pool(), **_new(), **ROTARY, "page_table": TABLE,
            "cache_seqlens": _ints(3, 9), "rotary_seqlens": _ints(3, 9),
        },
    ),
    "fa3.flash_attn_with_kvcache, ragged": (
        fa3.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(3, 4, 8), **_pool(), "k": torch.randn(3, 2, 8),
            "v": torch.randn(3, 2, 8), "cu_seqlens_q": _ints(0, 1, 3), "max_seqlen_q": 2,
            "cu_seqlens_k_new": _ints(0, 1, 3), "page_table": TABLE, "cache_seqlens": _ints(3, 9),
            "cache_batch_idx": _ints(1, 0),
        },
    ),
    "fa3.flash_attn_with_kvcache, latent": (
        fa3.flash_attn_with_kvcache,
        lambda: {
            "q": torch.randn(2, 1, 4, 8), "k_cache": _latent()[..., 16:],
            "v_cache": _latent()[..., :16], "qv": torch.randn(2, 1, 4, 16),
            "cache_seqlens": _ints(3, 9),
        },
    ),
    "fa3.flash_attn_combine": (
        fa3.flash_attn_combine,
        lambda: {
            "out_partial": torch.randn(3, 2, 5, 4, 8), "lse_partial": torch.randn(3, 2, 5, 4),
            "out": torch.empty(2, 5, 4, 8),
        },
    ),
}  # fmt: skip

_LATENT = torch.randn(2, 16, 1, 24)


def _latent() -> torch.Tensor:
    return _LATENT


def _nested(x: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(list(x), layout=layout)


# What each tensor is replaced by; None where it has no such form.
FOREIGN: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.view(x.shape[0], -1).to_sparse_csr(),
    "nested": lambda x: _nested(x, torch.strided) if x.ndim > 1 else None,
    "jagged": lambda x: _nested(x, torch.jagged) if x.ndim > 1 else None,
    "mkldnn": lambda x: x.to_mkldnn() if x.dtype == torch.float32 else None,
    "meta": lambda x: x.to("meta"),
    "no axes": lambda x: x.flatten()[0],
    "no elements": lambda x: x.flatten()[:0],
    "no first elements": lambda x: x[:0],
    "no last elements": lambda x: x[..., :0] if x.ndim > 1 else None,
    "an axis more": lambda x: x[None],
    "an axis less": lambda x: x[0],
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "double": lambda x: x.double(),
    "complex": lambda x: x.to(torch.complex64),
    "bool": lambda x: x.to(torch.bool),
    "gradient": lambda x: x.clone().requires_grad_() if x.dtype == torch.float32 else None,
    "numpy": lambda x: x.numpy() if x.dtype != torch.float8_e4m3fn else None,
    "list": lambda x: x.tolist(),
    "text": lambda x: "text",
    "number": lambda x: 3,
    "object": lambda x: object(),
    "none": lambda x: None,
}


def _tensors(arguments: dict[str, Any]) -> list[str]:
    return [name for name, x in arguments.items() if isinstance(x, torch.Tensor)]


CASES = [
    (call, name)
    for call, (_, make) in CALLS.items()
    for name in _tensors(make())
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_sound_calls_are_served(call: str) -> None:
    function, make = CALLS[call]
    function(**make())


@pytest.mark.parametrize(
    ("call", "name", "by_operator"),
    [(*case, False) for case in CASES]
    + [(*case, True) for case in CASES if case[0].startswith("torch_ops")],
)
def test_what_is_foreign_is_served_or_refused_by_name(
    call: str, name: str, by_operator: bool
) -> None:
    """Under autocast calls go through the operators."""
    function, make = CALLS[call]
    for what, replace in FOREIGN.items():
        arguments = make()
        try:
            foreign = replace(arguments[name])
        except (NotImplementedError, RuntimeError):  # torch has none of this type
            continue
        if foreign is None and what != "none":
            continue
        try:
            with torch.autocast("cpu", enabled=by_operator):
                function(**{**arguments, name: foreign})
        except REFUSALS as refusal:
            message = str(refusal)
        except Exception as failure:
            pytest.fail(f"{what}: {type(failure).__name__}: {failure}")
        else:
            continue
        names = {
            "q",
            "k",
            "v",
            "page",
            "o_partial",
            "d_head",
            *(n.partition("_")[0] for n in arguments),
        }
        assert any(n in message for n in names), f"{what}: {message}"
        for part in ("issue", "INTERNAL", "backend", "torch::", "unexpected keyword"):
            assert part not in message, f"{what}: {message}"


@pytest.mark.parametrize(("call", "name"), [case for case in CASES if len(CALLS[case[0]][1]()) > 1])
@pytest.mark.parametrize("by_operator", [False, True])
def test_a_tensor_without_data_beside_others_is_refused(
    call: str, name: str, by_operator: bool
) -> None:
    """torch itself would compute shapes alone, and write nothing."""
    function, make = CALLS[call]
    arguments = make()
    arguments[name] = arguments[name].to("meta")
    with torch.autocast("cpu", enabled=by_operator), pytest.raises(REFUSALS):
        function(**arguments)


# ---- A scale that the C API cannot say: 0 means the default there ----

SCALED = [
    call for call, (function, _) in CALLS.items() if "append" not in call and "combine" not in call
]


@pytest.mark.parametrize("scale", [0, 0.0, -0.0, 1e-46, -0.3, float("inf"), float("nan")])
@pytest.mark.parametrize("call", SCALED)
def test_a_scale_that_cannot_be_said_is_refused(call: str, scale: float) -> None:
    function, make = CALLS[call]
    with pytest.raises(ValueError, match=f"softmax_scale is {scale}"):
        function(**make(), softmax_scale=scale)
