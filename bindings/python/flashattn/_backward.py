"""This module computes gradients of attention, for arrays of any library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _abi, _numbers, _stream, _tensor
from . import config as _config
from ._attention import device_workspace
from ._library import check, library
from ._problem import Problem
from ._tensor import View
from .config import Config, ConfigLike, Op

_FLAGS = {
    "dq": _abi.FLASH_BACKWARD_ADD_DQ,
    "dk": _abi.FLASH_BACKWARD_ADD_DK,
    "dv": _abi.FLASH_BACKWARD_ADD_DV,
}


class Gradients(NamedTuple):
    """Holds what flash_attn_backward() returns: arrays, and None for what was not wanted."""

    dq: Any
    dk: Any
    dv: Any
    d_sinks: Any


def flash_attn_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    d_lse: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    d_sinks: Any = None,
    add: bool = False,
    dq_config: ConfigLike = None,
    dkv_config: ConfigLike = None,
    workspace: Any = None,
    **options: Any,
) -> Gradients:
    """Returns the gradients of q, k, v and the sinks of flash_attn_func(q, k, v, **options), or of
    flash_attn_varlen_func.

    o and lse are what that call returned with return_lse=True. d_o, shaped as o and of its type, is
    the gradient of o, and d_lse, shaped as lse, that of lse (None: it has none). options are the
    keywords of that call that describe the problem; K and V in pages, of e4m3, of latent tokens or
    of quantised blocks have no gradients.

    dq, dk and dv are arrays of the shapes of q, k and v to write to, each of the type of its tensor
    or float32; None: a new one of the tensor's type; False: not wanted. With add=True the gradients
    are added to what the given arrays hold, which must be of float32. d_sinks is an array
    [n_heads] of float32 in the same way, and is None in the result without sinks.

    dq_config and dkv_config name the kernels; None: the library chooses. workspace is as in
    flash_attn_func; in CUDA memory it may be smaller than the call gains by, and then more is
    computed twice. The same call gives the same bits. Source: flash_backward() in
    include/flashattn.h.
    """
    call = _Call(Problem(q, k, v, options), d_o, d_lse)
    call.set_results(o, lse)
    problem = call.problem
    wanted = {"dq": (dq, q, problem.q), "dk": (dk, k, problem.k), "dv": (dv, v, problem.v)}
    adds = _numbers.is_true("add", add)
    results = {name: call.set_gradient(name, *of, adds=adds) for name, of in wanted.items()}
    results["d_sinks"] = call.set_sinks(d_sinks, options.get("sinks"), q)
    call.args.dq_kernel = _config.resolve(dq_config)
    call.args.dkv_kernel = _config.resolve(dkv_config)
    call.launch(q, workspace)
    return Gradients(**results)


def measure_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    configs: Sequence[Config | str],
    *,
    d_lse: Any = None,
    workspace: Any = None,
    n_launches: int = 25,
    **options: Any,
) -> list[float]:
    """Returns the median seconds of n_launches launches of each kernel of gradients, after one that
    is not timed. Kernels take turns launch by launch.

    configs are Configs or short forms of rows of the table, all of Op.BACKWARD_DQ, which compute dq
    of q's type, or all of Op.BACKWARD_DKV, which compute dk and dv; the other arguments are as in
    flash_attn_backward. What kernels need of each query is computed once, outside of the time.
    Source: flash_backward_measure() in include/flashattn.h.
    """
    count = _numbers.int32("n_launches", n_launches)
    call = _Call(Problem(q, k, v, options), d_o, d_lse)
    call.set_results(o, lse)
    of_rows = {"dq": (q, call.problem.q), "dk": (k, call.problem.k), "dv": (v, call.problem.v)}
    outputs = [call.set_gradient(name, None, *of, adds=False) for name, of in of_rows.items()]
    rows = [_config.row(config) for config in configs]
    size = max((call.best_with(row) for row in rows), default=0)
    pointers = (ctypes.c_void_p * len(rows))(*rows)
    seconds = (ctypes.c_double * len(rows))()
    with device_workspace(call.problem, size, q, workspace) as (address, n_bytes):
        call.args.workspace, call.args.workspace_size = address, n_bytes
        stream = call.problem.stream
        check(
            library().flash_backward_measure(call.args, pointers, len(rows), count, stream, seconds)
        )
    del outputs  # the launches have written to them
    return list(seconds)


class _Call:
    """Holds flash_backward_args_t, and views that keep the caller's arrays alive."""

    def __init__(self, problem: Problem, d_o: Any, d_lse: Any) -> None:
        self.problem = problem
        self.views = [_like(d_o, "d_o", problem.o_shape, problem)]
        self.args = _abi.flash_backward_args_t(forward=ctypes.addressof(problem.args))
        self.args.d_o = _tensor.c_tensor(self.views[0], ragged=problem.ragged_q)
        if self.views[0].repeats:
            problem.args.flags |= _abi.FLASH_FLAG_BROADCAST
        if d_lse is not None:
            self._set_rows("d_lse", d_lse, self.args)
        if problem.ragged_q:
            self.args.total_q = problem.q.shape[0]
        if problem.cu_seqlens_k is not None:
            self.args.total_k = problem.k.shape[0]

    def set_results(self, o: Any, lse: Any) -> None:
        """Points args at O and LSE, which are only read."""
        problem = self.problem
        found = _like(o, "o", problem.o_shape, problem)
        if problem.out_dtype not in (None, found.dtype):
            raise ValueError(f"o is {found.dtype}, and out_dtype {problem.out_dtype}")
        self.views.append(found)
        problem.args.o = _tensor.c_tensor(found, ragged=problem.ragged_q)
        if found.repeats:
            problem.args.flags |= _abi.FLASH_FLAG_BROADCAST
        self._set_rows("lse", lse, problem.args)

    def _set_rows(self, name: str, numbers: Any, args: ctypes.Structure) -> None:
        """Points args at numbers shaped as LSE."""
        problem = self.problem
        _stream.check(problem.stream, **{name: numbers})
        found = _tensor.lse_view(numbers, name, problem.lse_shape, problem.stream)
        _tensor.check_same_device("q", problem.q, **{name: found})
        repeats = found.repeats and 0 not in found.shape
        if repeats and not any(found.strides):  # the C API would take them for no strides
            raise ValueError(f"{name} is one number in all places (strides of 0): copy it first")
        if found.repeats:
            problem.args.flags |= _abi.FLASH_FLAG_BROADCAST
        self.views.append(found)
        setattr(args, name, found.data)
        for member, stride in _tensor.lse_strides(found, ragged=problem.ragged_q).items():
            setattr(args, member.replace("lse", name), stride)

    def set_gradient(self, name: str, array: Any, of: Any, view: View, *, adds: bool) -> Any:
        """Points args at the array of a gradient, or at a new one, and returns it."""
        if array is False:
            return None
        if array is None and adds:
            raise ValueError(f"add is True, and {name} is no array to add to")
        if array is None:
            array = _tensor.empty(of, self.problem.device, view.shape, view.dtype, name)
            if len(view.shape) == 3:
                array[...] = 0  # tokens behind the last sequence have a gradient too
        found = _like(array, name, view.shape, self.problem)
        _tensor.check_outputs(**{name: found})
        ragged = self.problem.ragged_q if name == "dq" else len(view.shape) == 3
        self.views.append(found)
        setattr(self.args, name, _tensor.c_tensor(found, ragged=ragged))
        if adds:
            self.args.flags |= _FLAGS[name]
        return array

    def set_sinks(self, d_sinks: Any, sinks: Any, like: Any) -> Any:
        """Does the same for the gradient of sinks, if there are any."""
        if sinks is None and d_sinks is not None and d_sinks is not False:
            raise ValueError("d_sinks is given without sinks")
        if sinks is None or d_sinks is False:
            return None
        n_heads = self.problem.q.shape[-2]
        if d_sinks is None:
            d_sinks = _tensor.empty(like, self.problem.device, (n_heads,), "float32", "d_sinks")
        found = _like(d_sinks, "d_sinks", (n_heads,), self.problem)
        if found.dtype != "float32":
            raise ValueError(f"d_sinks is {found.dtype}, not float32")
        if n_heads > 1 and found.strides != (1,):
            raise ValueError(
                f"d_sinks is not contiguous (stride {found.strides[0]} elements, not 1)"
            )
        _tensor.check_outputs(d_sinks=found)
        self.views.append(found)
        self.args.d_sinks = found.data
        return d_sinks

    def sizes(self) -> tuple[int, int]:
        """Returns the bytes of workspace that the call must have, and those that it gains by."""
        least, best = ctypes.c_uint64(), ctypes.c_uint64()
        check(library().flash_backward_workspace_size(self.args, least, best))
        return least.value, best.value

    def best(self) -> int:
        return self.sizes()[1]

    def best_with(self, row: int) -> int:
        """Returns the same of a call whose kernel of its operation is this row of the table."""
        of_dq = _config.config_of(row).op == Op.BACKWARD_DQ
        self.args.dq_kernel, self.args.dkv_kernel = (row, None) if of_dq else (None, row)
        return self.best()

    def launch(self, like: Any, workspace: Any) -> None:
        least, best = self.sizes()
        with device_workspace(self.problem, best, like, workspace, least) as (address, size):
            self.args.workspace, self.args.workspace_size = address, size
            check(library().flash_backward(self.args, self.problem.stream))


def _like(array: Any, name: str, shape: tuple[int, ...], problem: Problem) -> View:
    """Returns a view of an array that must have the shape."""
    _stream.check(problem.stream, **{name: array})
    found = (
        _tensor.tensor_view(array, name, len(shape), problem.stream)
        if len(shape) > 1
        else _tensor.view(array, name, problem.stream)
    )
    if found.shape != shape:
        raise ValueError(f"{name} has shape {found.shape}, not {shape}")
    _tensor.check_same_device("q", problem.q, **{name: found})
    return found
