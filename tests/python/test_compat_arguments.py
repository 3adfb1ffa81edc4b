"""flashattn.compat: no argument of a function is taken and forgotten. Every one of every signature
changes the result (CHANGES), is refused by its name (REFUSED), or is one of those that must not
change it (NEUTRAL).
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
from compat_support import int32  # noqa: E402
from flashattn.compat import _fa3_ops, fa2, fa3  # noqa: E402
from flashattn.compat._arguments import multiprocessors  # noqa: E402

E4M3 = torch.float8_e4m3fn
Arguments = dict[str, Any]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# ---- Calls ----

PADDED = {"q": random(2, 9, 4, 16), "k": random(2, 9, 2, 16), "v": random(2, 9, 2, 16) + 1}
CAUSAL = {"causal": True}
RAGGED = {
    **{name: x.flatten(0, 1) for name, x in PADDED.items()},
    "cu_seqlens_q": int32(0, 9, 18),
    "cu_seqlens_k": int32(0, 9, 18),
    "max_seqlen_q": 18,
    "max_seqlen_k": 18,
}
QKV, KV = random(2, 9, 3, 4, 16), random(2, 9, 2, 2, 16)
CACHE = {
    "q": random(2, 3, 4, 16),
    "k_cache": random(4, 20, 2, 16),
    "v_cache": random(4, 20, 2, 16) + 1,
    "k": random(2, 2, 2, 16) + 2,
    "v": random(2, 2, 2, 16) + 3,
    "rotary_cos": random(20, 8),
    "rotary_sin": random(20, 8) + 1,
    "cache_seqlens": int32(5, 9),
}
PARTS = {"out_partial": random(3, 2, 5, 4, 16), "lse_partial": random(3, 2, 5, 4)}
_NAMES_OF_OP = {
    "k_cache": "k", "v_cache": "v", "k": "k_new", "v": "v_new", "cache_seqlens": "seqused_k",
}  # fmt: skip
OP = {_NAMES_OF_OP.get(name, name): x for name, x in CACHE.items()}

CALLS: dict[Callable[..., Any], Arguments] = {
    fa2.flash_attn_func: {**PADDED, **CAUSAL},
    fa2.flash_attn_kvpacked_func: {"q": PADDED["q"], "kv": KV, **CAUSAL},
    fa2.flash_attn_qkvpacked_func: {"qkv": QKV, **CAUSAL},
    fa2.flash_attn_varlen_func: {**RAGGED, **CAUSAL},
    fa2.flash_attn_varlen_kvpacked_func: {
        **{name: x for name, x in RAGGED.items() if name not in "kv"},
        "kv": KV.flatten(0, 1),
        **CAUSAL,
    },
    fa2.flash_attn_varlen_qkvpacked_func: {
        "qkv": QKV.flatten(0, 1), "cu_seqlens": int32(0, 9, 18), "max_seqlen": 18, **CAUSAL,
    },
    fa2.flash_attn_with_kvcache: {**CACHE, **CAUSAL},
    fa3.flash_attn_func: {**PADDED, **CAUSAL},
    fa3.flash_attn_qkvpacked_func: {"qkv": QKV, **CAUSAL},
    fa3.flash_attn_varlen_func: {**RAGGED, **CAUSAL},
    fa3.flash_attn_with_kvcache: {**CACHE, **CAUSAL},
    fa3.flash_attn_combine: PARTS,
    _fa3_ops._fwd: {**OP, "is_causal": True},
}  # fmt: skip

# ---- Arguments ----

REFUSED: Arguments = {
    "qv": torch.ones(2, 9, 4, 16),
    "q_v": torch.ones(2, 3, 4, 16),
}
NEUTRAL: Arguments = {
    "deterministic": True,
    "num_splits": 3,
    "pack_gqa": True,
    "sm_margin": 2,
    "scheduler_metadata": int32(1),
    "max_seqlen": 40,  # these are bounds
    "max_seqlen_q": 40,
    "max_seqlen_k": 40,
}
CHANGES: Arguments = {
    "dropout_p": 0.1,
    "alibi_slopes": torch.ones(4),
    "softmax_scale": 0.7,
    "causal": False,
    "is_causal": False,
    "window_size": (2, 0),
    "attention_chunk": 4,
    "window_size_left": 2,
    "window_size_right": 3,  # without a causal mask
    "softcap": 0.5,
    "return_attn_probs": True,
    "return_softmax_lse": True,
    "cu_seqlens": int32(0, 5, 18),
    "cu_seqlens_q": int32(0, 5, 18),
    "cu_seqlens_k": int32(0, 5, 18),
    "cu_seqlens_k_new": int32(0, 1, 4),
    "seqused_q": int32(3, 9),
    "seqused_k": int32(3, 9),
    "q_descale": torch.full((2, 2), 0.5),
    "k_descale": torch.full((2, 2), 0.5),
    "v_descale": torch.full((2, 2), 0.5),
    "num_heads_q": 6,
    "rotary_interleaved": False,
    "is_rotary_interleaved": True,
    "rotary_seqlens": int32(0, 3),
    "seqlens_rotary": int32(0, 3),
    "cache_seqlens": int32(5, 8),
    "cache_batch_idx": int32(0, 3),
    "kv_batch_idx": int32(0, 3),
    "cache_leftpad": int32(0, 2),
    "leftpad_k": int32(0, 2),
    "block_table": int32(0, 3).view(2, 1),
    "page_table": int32(0, 3).view(2, 1),
    "out": torch.zeros(2, 5, 4, 16, dtype=torch.bfloat16),
    "out_dtype": torch.bfloat16,
}


def _e4m3(call: Arguments) -> Arguments:
    """Returns the call with elements of 8 bits, for which scales count and rotary does not work."""
    kept = {name: x for name, x in call.items() if not name.startswith("rotary")}
    names = {"q", "k", "v", "qkv", "k_cache", "v_cache", "k_new", "v_new"}
    return {name: x.to(E4M3) if name in names else x for name, x in kept.items()}


def prepared(function: Callable[..., Any], name: str) -> Arguments:
    """Returns a call of the function in which an argument of this name counts."""
    call = CALLS[function]
    has_cache = "rotary_cos" in call
    if name == "num_heads_q" or (name.endswith("_descale") and "qkv" in call):
        call = {**call, "qkv": QKV.flatten(2, 3)[:, :, :8], "num_heads_q": 4}
    if name.endswith("_descale"):
        return _e4m3(call)
    if name in ("cu_seqlens_q", "max_seqlen_q") and has_cache:
        return {**call, "q": call["q"].flatten(0, 1), "cu_seqlens_q": int32(0, 3, 6)}
    if name == "cu_seqlens_k_new":
        names = ("k_new", "v_new") if function is _fa3_ops._fwd else ("k", "v")
        return {**call, **{x: call[x].flatten(0, 1) for x in names}, name: int32(0, 2, 4)}
    if name == "block_table" and not has_cache:
        pages = {x: PADDED[x] for x in "kv"}
        return {**call, **pages, name: int32(0, 1).view(2, 1)}
    if name == "window_size_right":
        return {**call, "is_causal": False}
    return call


def changed(function: Callable[..., Any], name: str, call: Arguments) -> Any:
    """Returns another value of the argument."""
    has_cache = "rotary_cos" in call
    if name == "cu_seqlens_q" and has_cache:
        return int32(0, 2, 6)
    if name == "block_table" and not has_cache:
        return int32(1, 0).view(2, 1)
    if name == "out" and function is _fa3_ops._fwd:
        return torch.zeros(2, 3, 4, 16, dtype=torch.bfloat16)
    if name not in CHANGES and isinstance(call[name], torch.Tensor):
        return call[name] * 1.5
    return CHANGES[name]


# ---- Tests ----


def outcome(function: Callable[..., Any], call: Arguments) -> list[torch.Tensor]:
    """Returns what the function returns, and what it leaves in its arguments."""
    given = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in call.items()}
    found = function(**given)
    of_cache = [given[name] for name in ("k_cache", "v_cache") if name in given]
    if function is _fa3_ops._fwd:
        of_cache = [given["k"], given["v"]]
    return [*(found if isinstance(found, tuple) else (found,)), *of_cache]


def are_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(x.float(), y.float())
        for x, y in zip(first, second)
    )


def _walk() -> list[Any]:
    return [
        pytest.param(function, name, id=f"{function.__module__[17:]}.{function.__name__}-{name}")
        for function in CALLS
        for name in inspect.signature(function).parameters
    ]


@pytest.mark.parametrize(("function", "name"), _walk())
def test_no_argument_is_forgotten(function: Callable[..., Any], name: str) -> None:
    if name in REFUSED:
        with pytest.raises(NotImplementedError, match=rf"^{name} is "):
            function(**{**CALLS[function], name: REFUSED[name]})
        return
    if function is _fa3_ops._fwd and name in ("seqused_q", "cu_seqlens_k"):
        with pytest.raises(NotImplementedError, match=f"{name} is given with an argument of a"):
            function(**CALLS[function], **{name: CHANGES[name]})
        return
    call = prepared(function, name)
    before = outcome(function, call)
    assert are_equal(outcome(function, call), before)
    value = NEUTRAL[name] if name in NEUTRAL else changed(function, name, call)
    after = outcome(function, {**call, name: value})
    assert are_equal(after, before) == (name in NEUTRAL)


def test_every_function_is_walked() -> None:
    """get_scheduler_metadata plans nothing: test_compat.py has it."""
    public = {getattr(module, name) for module in (fa2, fa3) for name in module.__all__}
    assert public - {fa3.get_scheduler_metadata} == set(CALLS) - {_fa3_ops._fwd}


# ---- sm_margin ----


@pytest.mark.parametrize(
    "function",
    [function for function, name in (p.values for p in _walk()) if name == "sm_margin"],
    ids=lambda function: function.__name__,
)
def test_sm_margin_reaches_the_library(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors are taken for some of a device of 132 multiprocessors, and the library refuses
    the number, because they are not."""

    def of_device(q: torch.Tensor, sm_margin: int) -> dict[str, int]:
        return {"n_multiprocessors": 132 - sm_margin}

    monkeypatch.setattr(fa3, "multiprocessors", of_device)
    with pytest.raises(ValueError, match="n_multiprocessors is 116, and device is 0x0"):
        function(**CALLS[function], sm_margin=16)


def test_sm_margin_is_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    q = SimpleNamespace(is_cuda=True, device="cuda:3")
    assert multiprocessors(q, 0) == {}
    assert multiprocessors(q, 16) == {"n_multiprocessors": 116}
    assert multiprocessors(q, 132) == multiprocessors(q, 999) == {"n_multiprocessors": 1}
    assert multiprocessors(torch.ones(1), 16) == {}  # the CPU has none
    with pytest.raises(ValueError, match="sm_margin is -1: negative"):
        multiprocessors(q, -1)
