"""Attention problems as calls of flashattn.torch_ops. Tensors share the memory of numpy's arrays:
layouts, guards and NaN around inputs are those of memory.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from flashattn import torch_ops
from flashattn._torch import extension, registration
from flashattn._torch.call import DEFAULTS, GROUPS, NAMES, Call
from memory import Guarded, dtype_of
from problems import LENGTHS_OF_A_CALL, AttentionProblem, make_inputs

# By the extension where it is there, without it, and through torch's dispatcher.
WAYS = ("function", "ctypes", "operator")
_HIDDEN = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a tensor in the array's memory."""
    dtype = _HIDDEN.get(array.dtype.name)
    if dtype is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    name = str(tensor.dtype).rpartition(".")[2]
    if name not in _HIDDEN:
        return tensor.numpy()
    return tensor.view(getattr(torch, f"int{8 * tensor.itemsize}")).numpy().view(dtype_of(name))


def torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def options_of(p: AttentionProblem) -> dict[str, Any]:
    """Returns keywords of flash_attn_varlen_func, with tensors for arrays and lengths."""
    options = p.call_options()
    options["out_dtype"] = torch_dtype(options["out_dtype"])
    for name in ("cu_seqlens_q", "cu_seqlens_k", *LENGTHS_OF_A_CALL):
        if options[name] is not None:
            options[name] = torch.tensor(options[name], dtype=torch.int32)
    for name in ("k_descale", "v_descale", "q_descale", "sinks"):
        if isinstance(options[name], np.ndarray):
            options[name] = torch.from_numpy(options[name])
    for name in ("alibi_slopes", "attn_mask", "mask_bits", "mask_head_scale"):
        if options.get(name) is not None:
            array = options[name]
            options[name] = to_tensor(array.view("i4") if array.dtype == np.uint32 else array)
    return options


def call_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Call:
    """Returns the call of these arguments; those that are not given have their defaults."""
    given = {**DEFAULTS, "q": q, "k": k, "v": v, **options}
    for group, names in GROUPS.items():
        members = tuple(given.pop(name) for name in names)
        given[group] = None if all(x is None for x in members) else members
    assert given.keys() == set(NAMES)
    return tuple(given[name] for name in NAMES)


def run(
    p: AttentionProblem,
    way: str,
    inputs: list[np.ndarray] | None = None,
    pages: Mapping[str, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) of one call, in one of WAYS. Outputs are guarded.

    inputs, pages    as make_pages() returns them, where K and V lie in pages
    """
    q, k, v = map(to_tensor, inputs or make_inputs(p))
    options = options_of(p)
    options.update({name: to_tensor(array) for name, array in (pages or {}).items()})
    o = Guarded((*q.shape[:-1], v.shape[-1]), dtype_of(p.types[2]), p.layouts[3])
    lse = Guarded((*q.shape[:-3], q.shape[-2], q.shape[-3]), np.float32)
    options.update(out=to_tensor(o.array), lse=to_tensor(lse.array))
    if way == "function":
        options["out_dtype"] = None  # which out tells, and the extension does not take
    call(q, k, v, way, options)
    return o.take(), lse.take()


def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, way: str, options: dict) -> Any:
    """Calls the function that the options belong to."""
    with entered(way):
        return _call(q, k, v, options)


def entered(way: str) -> AbstractContextManager:
    """Returns a context in which functions of torch_ops go this way."""
    if way == "operator":
        return Recorded()
    return without_extension() if way == "ctypes" else nullcontext()


@contextmanager
def without_extension() -> Iterator[None]:
    kept = extension.forward, extension.append
    extension.forward = extension.append = None
    try:
        yield
    finally:
        extension.forward, extension.append = kept


def _call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict) -> Any:
    if options["cu_seqlens_q"] is options["cu_seqlens_k"] is None:
        padded = {n: x for n, x in options.items() if not n.startswith(("cu_", "max_"))}
        return torch_ops.flash_attn_func(q, k, v, **padded)
    return torch_ops.flash_attn_varlen_func(q, k, v, **options)


def check_plain_tensors_skip_the_dispatcher(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between autograd and the kernel there is nothing for operators on tensors with data, which
    parameters are too. Under a mode there is."""
    checked: list[str] = []
    monkeypatch.setattr(
        registration.derivatives, "refuse", lambda names, values: checked.extend(names)
    )
    q = torch.ones(2, 3, 2, 64, device=device, dtype=torch.float16)
    partial, lse = torch.ones(3, 2, 3, 2, 64, device=device), torch.ones(3, 2, 2, 3, device=device)
    ops = torch.ops.flashattn
    for x in (q, q.transpose(0, 1), torch.nn.Parameter(q, requires_grad=False)):
        ops.fwd(x, x, x, causal=True)
        ops.fwd.lse(x, x, x)
        ops.fwd.out(x, x, x, out=torch.empty_like(q).view(x.shape))
        ops.combine(partial, lse)
    assert not checked
    with Recorded():
        ops.fwd(q, q, q)
    assert checked[:3] == ["q", "k", "v"]


class Recorded(torch.utils._python_dispatch.TorchDispatchMode):
    """Lists the operators of this project that are called, which sends calls through torch's
    dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function.namespace == "flashattn":
            self.operators.append(f"{function._opname}.{function._overloadname}")
        return function(*args, **(kwargs or {}))
