"""A value of a type that an argument cannot have is refused with the argument's name, by every
function that takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flashattn
import numpy as np
import pytest
from flashattn._argument_list import APPEND, ATTENTION, BOUND, FLAG, OUTPUTS, Argument

# No argument takes one of these, but that text is true.
WRONG = [object(), "x", [1.5], {}, ("x", "y"), np.zeros((2, 2)), 2**2000, -(2**2000)]
FLAGS = [np.zeros((2, 2))]
Q, KV = np.ones((1, 2, 4, 8), np.float32), np.ones((1, 16, 2, 8), np.float32)
MASK = {"attn_mask": np.zeros((2, 16), np.float32)}
RAGGED = {
    "cu_seqlens_q": np.array([0, 2], np.int32),
    "cu_seqlens_k": np.array([0, 16], np.int32),
    "max_seqlen_q": 2,
    "max_seqlen_k": 16,
}
PAGES = {"page_table": np.zeros((1, 1), np.int32), "seqused_k": np.array([3], np.int32)}
FLAT = {**PAGES, "page_table": np.zeros(1, np.int32)}
OF_PAGES = {"page_table", "v_page_table", "page_indptr", "page_rows", "seqused_k"}
OF_MASKS = {"mask_keys", "mask_head_scale"}
TABLES = {"rotary_cos": np.ones((16, 4), np.float32), "rotary_sin": np.ones((16, 4), np.float32)}


def _calls(name: str) -> Iterator[tuple[str, list[np.ndarray], dict[str, Any]]]:
    """Yields functions with arguments that do, one of which is then replaced."""
    if name not in RAGGED:
        yield "flash_attn_func", [Q, KV, KV], MASK if name in OF_MASKS else {}
        yield "flash_attn_func", [Q, KV, KV], FLAT if name == "page_indptr" else PAGES
    if name in OF_PAGES:
        return
    yield "flash_attn_varlen_func", [Q[0], KV[0], KV[0]], RAGGED
    if name in ("max_seqlen_q", "max_seqlen_k"):
        padded = dict.fromkeys(RAGGED)
        yield "flash_attn_varlen_func", [Q, KV, KV], padded
        yield "flash_attn_varlen_func", [Q, KV, KV], {**padded, **PAGES}


def _values(argument: Argument) -> list[Any]:
    return FLAGS if argument.kind is FLAG else WRONG


def _is_refused_by_name(
    name: str, value: Any, function: Callable[..., object], *tensors: Any, **options: Any
) -> None:
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as raised:
        function(*tensors, **{**options, name: value})
    assert name in str(raised.value)


@pytest.mark.parametrize("argument", [*ATTENTION, *OUTPUTS], ids=lambda x: x.name)
def test_functions_for_all_arrays(argument: Argument) -> None:
    for function, tensors, options in _calls(argument.name):
        for value in _values(argument):
            call = getattr(flashattn, function)
            _is_refused_by_name(argument.name, value, call, *tensors, **options)


@pytest.mark.parametrize("argument", APPEND, ids=lambda x: x.name)
def test_the_function_for_all_arrays_that_appends(argument: Argument) -> None:
    for tokens, options in _calls_that_append(argument.name):
        for value in _values(argument):
            call = flashattn.flash_kv_append
            _is_refused_by_name(argument.name, value, call, *tokens, **options)


def _calls_that_append(name: str) -> Iterator[tuple[list[np.ndarray], dict[str, Any]]]:
    new, cache = np.ones((1, 1, 2, 8), np.float32), [KV.copy(), KV.copy()]
    if name == "cu_seqlens_new":
        yield [new[0], new[0], *cache], {"seqused_k": PAGES["seqused_k"]}
        return
    for where in ({"seqused_k": PAGES["seqused_k"]}, FLAT if name == "page_indptr" else PAGES):
        yield [new, new, *cache], {**where, **TABLES, "q": Q[:, :1]}


@pytest.mark.parametrize("name", ["kv_dtype", "config", "workspace"])
def test_what_only_functions_for_all_arrays_have(name: str) -> None:
    values = [x for x in WRONG if name != "workspace"]  # the CPU has no use for a workspace
    for value in values:
        _is_refused_by_name(name, value, flashattn.flash_attn_func, Q, KV, KV)


# ---- torch ----


def _of_torch(x: Any) -> Any:
    import torch

    return torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x


def _torch_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: _of_torch(x) for name, x in options.items()}


@pytest.fixture(params=["extension", "without it"])
def torch_ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import extension

    if request.param == "without it":
        monkeypatch.setattr(extension, "forward", None)
        monkeypatch.setattr(extension, "append", None)
    return torch_ops


@pytest.mark.parametrize("argument", [*ATTENTION, *OUTPUTS], ids=lambda x: x.name)
def test_functions_for_torch(argument: Argument, torch_ops: Any) -> None:
    for function, tensors, options in _calls(argument.name):
        for value in _values(argument):
            if argument.kind is BOUND and isinstance(value, int) and value > 0:
                continue  # a bound that says nothing
            for wrong in (value, _of_torch(value)):
                call = getattr(torch_ops, function)
                given = map(_of_torch, tensors)
                _is_refused_by_name(argument.name, wrong, call, *given, **_torch_options(options))


@pytest.mark.parametrize("argument", APPEND, ids=lambda x: x.name)
def test_the_function_for_torch_that_appends(argument: Argument, torch_ops: Any) -> None:
    for tokens, options in _calls_that_append(argument.name):
        for value in _values(argument):
            for wrong in (value, _of_torch(value)):
                call = torch_ops.flash_kv_append
                given = map(_of_torch, tokens)
                _is_refused_by_name(argument.name, wrong, call, *given, **_torch_options(options))


@pytest.mark.parametrize("name", ["rotary_interleaved", "rotary_q_at_start"])
def test_torch_refuses_options_of_tables_that_are_missing(name: str, torch_ops: Any) -> None:
    (tokens, options), _ = _calls_that_append(name)
    given = {"seqused_k": _of_torch(options["seqused_k"]), name: True}
    with pytest.raises(ValueError, match=f"{name} is given without rotary_cos and rotary_sin"):
        torch_ops.flash_kv_append(*map(_of_torch, tokens), **given)


@pytest.mark.parametrize("name", ["k_descale", "v_descale"])
@pytest.mark.parametrize("scale", [1e300, 2**200])
def test_scales_beyond_float32_are_scales(name: str, scale: float, torch_ops: Any) -> None:
    """They are refused as any scale of these types is."""
    tensors = Q, KV, KV
    with pytest.raises(ValueError, match=rf"quant\.{name[0]}_scale is given, and k.dtype is"):
        flashattn.flash_attn_func(*tensors, **{name: scale})
    with pytest.raises(ValueError, match=rf"quant\.{name[0]}_scale is given, and k.dtype is"):
        torch_ops.flash_attn_func(*map(_of_torch, tensors), **{name: scale})


# What numbers of flash-attn's functions may not be.
COMPAT = {
    "window_size": [3, "x", (1, 2, 3), ("a", 0), (1.5, 0), None],
    "softcap": ["x", "1.5", None, [1.0]],
    "softmax_scale": ["x", [1.0]],
    "attention_chunk": ["x", 1.5, None],
    "sm_margin": ["x", 1.5, None],
}


@pytest.mark.parametrize("name", COMPAT)
@pytest.mark.parametrize("module", ["fa2", "fa3"])
def test_functions_of_flash_attn(name: str, module: str, torch_ops: Any) -> None:
    import inspect
    from importlib import import_module

    functions = import_module(f"flashattn.compat.{module}")
    q, k = _of_torch(Q), _of_torch(KV)
    for function in (functions.flash_attn_func, functions.flash_attn_with_kvcache):
        if name not in inspect.signature(function).parameters:
            continue
        for value in COMPAT[name]:
            _is_refused_by_name(name, value, function, q, k, k)
