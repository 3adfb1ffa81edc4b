"""Valid calls of the C API that have, between them, every array and every stride of the header's
structs. Tests spoil one thing at a time.

All arrays of a call lie in one arena, far enough apart that an output put beside any of them stays
in it."""

from __future__ import annotations

import ctypes
from typing import Callable, NamedTuple

import ml_dtypes
import numpy as np
from flashattn import _abi
from flashattn._library import library

BATCH, SEQLEN_Q, SEQLEN_K, N_HEADS, N_HEADS_KV, D_HEAD = 2, 5, 7, 4, 2, 8
PAGE_SIZE, N_PAGES, N_IDS = 3, 6, 3
NEW, N_POSITIONS, PAIRS = 3, 12, 3
N_PARTIALS = 3
E4M3 = ml_dtypes.float8_e4m3fn
_DTYPES = {"float32": _abi.FLASH_DTYPE_FP32, "float8_e4m3fn": _abi.FLASH_DTYPE_E4M3}


class Stride(NamedTuple):
    """A member of a struct of the call, and the axis of an array that it belongs to."""

    array: str
    axis: int


class Call:
    """`arrays` are by the names that messages give them, `strides` by their members' paths. Members
    are those of `args`, or of the struct that it extends."""

    _SPACE, _GAP = 1 << 17, 1 << 12

    def __init__(
        self, function: str, args: ctypes.Structure, extends: ctypes.Structure | None = None
    ) -> None:
        self.function, self.args = function, args
        self._extended = args if extends is None else extends
        self.structs: dict[str, ctypes.Structure] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.outputs: list[str] = []
        self.strides: dict[str, Stride] = {}
        self.memory = np.zeros(self._SPACE, np.uint8)
        self._used = self._GAP + -self.memory.ctypes.data % 64
        self._random = np.random.default_rng(0)

    # ---- Building ----

    def random(self, *shape: int, dtype: object = np.float32) -> np.ndarray:
        return self._random.standard_normal(shape).astype(dtype)

    def put(self, name: str, values: object, dtype: object = np.int32) -> np.ndarray:
        """Copies an array into the arena, and points the member of that name to it."""
        values = np.asarray(values, None if isinstance(values, np.ndarray) else dtype)
        array = np.ndarray(values.shape, values.dtype, self.memory, self._used)
        array[...] = values
        self._used += -(-values.nbytes // 64) * 64 + self._GAP
        assert self._used <= self._SPACE
        self.arrays[name] = array
        self.point(name, array.ctypes.data)
        return array

    def put_tensor(self, name: str, values: np.ndarray, is_output: bool = False) -> None:
        """Puts a tensor [batch, seq, head, d_head], or several, or one without the first axis."""
        setattr(self._root(name), name, _abi.flash_tensor_t(dtype=_DTYPES[values.dtype.name]))
        self.put(name, values)
        for i, axis in enumerate(("head", "seq", "batch")[: values.ndim - 1]):
            self.put_stride(f"{name}.stride_{axis}", name, values.ndim - 2 - i)
        if is_output:
            self.outputs.append(name)

    def put_output(self, name: str, shape: tuple[int, ...], dtype: object = np.float32) -> None:
        self.put(name, np.zeros(shape, dtype))
        self.outputs.append(name)

    def put_stride(self, path: str, array: str, axis: int) -> None:
        self.strides[path] = Stride(array, axis)
        values = self.arrays[array]
        self.set(path, values.strides[axis] // values.itemsize)

    def put_struct(self, name: str, struct: ctypes.Structure) -> None:
        self.structs[name] = struct
        setattr(self._root(name), name, ctypes.addressof(struct))

    # ---- Changing ----

    def _root(self, member: str) -> ctypes.Structure:
        return self.args if hasattr(type(self.args), member) else self._extended

    def _owner(self, path: str) -> tuple[ctypes.Structure, str]:
        *parents, member = path.split(".")
        if not parents:
            return self._root(member), member
        return self.structs.get(parents[0]) or getattr(self._root(parents[0]), parents[0]), member

    def set(self, path: str, value: object) -> None:
        owner, member = self._owner(path)
        setattr(owner, member, value)

    def get(self, path: str) -> int:
        owner, member = self._owner(path)
        return getattr(owner, member) or 0

    def member_type(self, path: str) -> str:
        """Returns a member by the type of its struct, as in flash_mask_t.stride_key."""
        owner, member = self._owner(path)
        if isinstance(owner, _abi.flash_tensor_t):
            return f"{type(self._root(path.split('.')[0])).__name__}.{path}"
        return f"{type(owner).__name__}.{member}"

    def point(self, name: str, address: int) -> None:
        """Sets the pointer to an array: a member, or data of a tensor."""
        owner, member = self._owner(name)
        if isinstance(getattr(owner, member), _abi.flash_tensor_t):
            owner, member = getattr(owner, member), "data"
        setattr(owner, member, address)

    def allow_repeats(self) -> None:
        self._extended.flags |= _abi.FLASH_FLAG_BROADCAST

    def run(self) -> int:
        kernel = (None,) if self.function == "flash_forward" else ()
        return getattr(library(), self.function)(self.args, *kernel, None)

    def results(self) -> bytes:
        return b"".join(self.arrays[name].tobytes() for name in self.outputs)


# ---- Attention ----


_Q_SHAPE = (BATCH, SEQLEN_Q, N_HEADS, D_HEAD)


def _forward(
    k_shape: tuple[int, ...],
    k_dtype: object = np.float32,
    q_shape: tuple[int, ...] = _Q_SHAPE,
    q_dtype: object = np.float32,
) -> Call:
    call = Call("flash_forward", _abi.flash_forward_args_t(dtype=_abi.FLASH_DTYPE_FP32))
    call.put_tensor("q", call.random(*q_shape, dtype=q_dtype))
    call.put_tensor("k", call.random(*k_shape, dtype=k_dtype))
    call.put_tensor("v", call.random(*k_shape, dtype=k_dtype))
    call.put_tensor("o", np.zeros(q_shape, np.float32), is_output=True)
    call.put_output("lse", (*q_shape[:-3], N_HEADS, q_shape[-3]))
    for i, name in enumerate(("seq", "head", "batch")[: len(q_shape) - 1]):
        call.put_stride(f"lse_stride_{name}", "lse", len(q_shape) - 2 - i)
    for name, value in {
        "batch": BATCH, "seqlen_q": SEQLEN_Q, "seqlen_k": SEQLEN_K,
        "n_heads": N_HEADS, "n_heads_kv": N_HEADS_KV, "d_head": D_HEAD,
    }.items():  # fmt: skip
        setattr(call.args, name, value)
    return call


def _give_workspace(call: Call) -> Call:
    size = ctypes.c_uint64()
    assert library().flash_workspace_size(call.args, None, size) == 0
    call.workspace = np.zeros(size.value + 64, np.uint8)
    call.args.workspace, call.args.workspace_size = call.workspace.ctypes.data, size.value
    return call


def _put_bias(call: Call) -> None:
    call.put("sinks", call.random(N_HEADS))
    call.put("alibi_slopes", call.random(BATCH, N_HEADS))
    call.put_stride("alibi_stride_batch", "alibi_slopes", 0)
    mask = _abi.flash_mask_t(kind=_abi.FLASH_MASK_ADD, n_keys=SEQLEN_K)
    call.put_struct("mask", mask)
    call.put("mask.data", call.random(*call.arrays["lse"].shape, SEQLEN_K))
    call.put("mask.head_scale", call.random(N_HEADS))
    axes = ("key", "query", "head", "batch")
    for i, name in enumerate(axes[: call.arrays["mask.data"].ndim]):
        call.put_stride(f"mask.stride_{name}", "mask.data", call.arrays["mask.data"].ndim - 1 - i)


def _put_dropout(call: Call) -> None:
    call.put_struct("dropout", _abi.flash_dropout_t(p=0.25))
    call.put("dropout.seed_ptr", [3], np.uint64)
    call.put("dropout.offset_ptr", [5], np.uint64)


def padded() -> Call:
    """Every array that a call with equal lengths can have."""
    call = _forward((BATCH, SEQLEN_K, N_HEADS_KV, D_HEAD))
    _put_bias(call)
    _put_dropout(call)
    call.put("seqused_q", [4, 5])
    call.put("seqused_k", [7, 6])
    call.put("leftpad_k", [0, 2])
    return _give_workspace(call)


def ragged() -> Call:
    q_shape = (BATCH * SEQLEN_Q, N_HEADS, D_HEAD)
    call = _forward((BATCH * SEQLEN_K, N_HEADS_KV, D_HEAD), q_shape=q_shape)
    _put_bias(call)
    _put_dropout(call)
    call.put("cu_seqlens_q", [0, 5, 10])
    call.put("cu_seqlens_k", [0, 7, 14])
    call.put("seqused_q", [4, 5])
    call.put("seqused_k", [7, 5])
    return _give_workspace(call)


def _put_scales(call: Call, *of_q: str) -> None:
    call.put_struct("quant", _abi.flash_quant_t())
    for name in ("k_scale", "v_scale", *of_q):
        call.put(f"quant.{name}", np.abs(call.random(BATCH, N_HEADS_KV)) + 0.5)
        call.put_stride(f"quant.{name}_stride_batch", f"quant.{name}", 0)
        call.put_stride(f"quant.{name}_stride_head", f"quant.{name}", 1)


def _put_table(call: Call) -> None:
    """Puts a table that both sequences of `paged` and of `appended` fit."""
    call.put_struct("paging", _abi.flash_paging_t(page_size=PAGE_SIZE, n_pages=N_PAGES))
    call.put("paging.page_table", [[4, 0, 2], [1, 3, 5]])
    call.put_stride("paging.page_table_stride", "paging.page_table", 0)
    call.put("paging.v_page_table", [[4, 0, 2], [1, 3, 5]])


def quantised() -> Call:
    """Q, K and V of e4m3, with every array of scales."""
    call = _forward((BATCH, SEQLEN_K, N_HEADS_KV, D_HEAD), E4M3, q_dtype=E4M3)
    _put_scales(call, "q_scale")
    call.put("quant.q_token_scale", np.abs(call.random(*_Q_SHAPE[:-1])) + 0.5)
    for axis, name in enumerate(("batch", "seq", "head")):
        call.put_stride(f"quant.q_token_scale_stride_{name}", "quant.q_token_scale", axis)
    return _give_workspace(call)


def paged() -> Call:
    """Pages of e4m3, with scales and rows of the table."""
    call = _forward((N_PAGES, PAGE_SIZE, N_HEADS_KV, D_HEAD), E4M3)
    _put_scales(call)
    _put_table(call)
    call.put("paging.page_rows", [1, 0])
    call.put("seqused_k", [7, 6])
    return _give_workspace(call)


def _use_indptr(call: Call) -> None:
    del call.strides["paging.page_table_stride"]
    call.structs["paging"].page_table_stride = 0
    call.put("paging.page_indptr", [0, 3, 6])


def paged_by_indptr() -> Call:
    call = _forward((N_PAGES, PAGE_SIZE, N_HEADS_KV, D_HEAD))
    _put_table(call)
    _use_indptr(call)
    call.put("seqused_k", [7, 6])
    return _give_workspace(call)


# ---- Gradients ----


def _put_gradients(forward: Call) -> Call:
    """Makes the call for gradients of a call for attention."""
    assert forward.run() == 0
    args = forward.args
    args.workspace, args.workspace_size = None, 0
    backward = _abi.flash_backward_args_t(forward=ctypes.addressof(args))
    call = Call("flash_backward", backward, args)
    call.structs, call.strides = {"forward": args, **forward.structs}, forward.strides
    for name, array in forward.arrays.items():
        call.put(name, array)
    call.put_tensor("d_o", call.random(*call.arrays["o"].shape))
    call.put("d_lse", call.random(*call.arrays["lse"].shape))
    for path, (array, axis) in list(call.strides.items()):
        if array == "lse":
            call.put_stride(f"d_{path}", "d_lse", axis)
    for name in ("q", "k", "v"):
        call.put_tensor(f"d{name}", np.zeros_like(call.arrays[name]), is_output=True)
    call.put_output("d_sinks", (N_HEADS,))
    size = ctypes.c_uint64()
    assert library().flash_backward_workspace_size(backward, None, size) == 0
    call.workspace = np.zeros(size.value + 4096, np.uint8)
    backward.workspace, backward.workspace_size = call.workspace.ctypes.data, size.value
    return call


def gradients() -> Call:
    return _put_gradients(padded())


def ragged_gradients() -> Call:
    return _put_gradients(ragged())


# ---- Merging ----


def _combine(*partial_strides: str) -> Call:
    call = Call("flash_combine", _abi.flash_combine_args_t(dtype=_abi.FLASH_DTYPE_FP32))
    shape, lse_shape = (BATCH, SEQLEN_Q, N_HEADS, D_HEAD), (BATCH, N_HEADS, SEQLEN_Q)
    call.put_tensor("o_partial", call.random(N_PARTIALS, *shape))
    call.put("lse_partial", call.random(N_PARTIALS, *lse_shape))
    call.put_tensor("o", np.zeros(shape, np.float32), is_output=True)
    call.put_output("lse", lse_shape)
    call.put("sinks", call.random(N_HEADS))
    for axis, name in enumerate(("batch", "head", "seq")):
        call.put_stride(f"lse_partial_stride_{name}", "lse_partial", 1 + axis)
        call.put_stride(f"lse_stride_{name}", "lse", axis)
    for name, value in {
        "n_partials": N_PARTIALS, "batch": BATCH, "seqlen_q": SEQLEN_Q, "n_heads": N_HEADS,
        "d_head": D_HEAD,
    }.items():  # fmt: skip
        setattr(call.args, name, value)
    return call


def combined() -> Call:
    call = _combine()
    call.put_stride("stride_partial", "o_partial", 0)
    call.put_stride("lse_partial_stride", "lse_partial", 0)
    return call


def combined_from_lists() -> Call:
    """Partial results in lists; a stride of all of them is by its axis of the first."""
    call = _combine()
    for name, of in (("o_partials", "o_partial"), ("lse_partials", "lse_partial")):
        values = call.arrays.pop(of)
        call.put(name, [part.ctypes.data for part in values], np.uint64)
        call.arrays |= {f"{name}[{i}]": part for i, part in enumerate(values)}
        call.point(of, 0)
    call.strides = {
        path: Stride(stride.array.replace("_partial", "_partials[0]"), stride.axis - 1)
        if "_partial" in path
        else stride
        for path, stride in call.strides.items()
    }
    return call


# ---- Quantising ----


def quantised_tensor() -> Call:
    args = _abi.flash_quantise_args_t(flags=_abi.FLASH_QUANTISE_MINUS_MEAN)
    call = Call("flash_quantise", args)
    call.put_tensor("x", call.random(BATCH, SEQLEN_K, N_HEADS, D_HEAD))
    call.put_tensor("codes", np.zeros((BATCH, SEQLEN_K, N_HEADS, D_HEAD), E4M3), is_output=True)
    _put_means(call)
    call.args.seqlen = SEQLEN_K
    return call


def quantised_ragged() -> Call:
    args = _abi.flash_quantise_args_t(flags=_abi.FLASH_QUANTISE_MINUS_MEAN)
    call = Call("flash_quantise", args)
    call.put_tensor("x", call.random(BATCH * SEQLEN_K, N_HEADS, D_HEAD))
    call.put_tensor("codes", np.zeros((BATCH * SEQLEN_K, N_HEADS, D_HEAD), E4M3), is_output=True)
    _put_means(call)
    call.put("cu_seqlens", [0, 7, 14])
    call.args.seqlen = SEQLEN_K
    return call


def _put_means(call: Call) -> None:
    call.put_output("scale", (BATCH, N_HEADS))
    call.put_output("mean", (BATCH, N_HEADS, D_HEAD))
    call.args.batch, call.args.n_heads, call.args.d_head = BATCH, N_HEADS, D_HEAD


# ---- Appending ----


def _append(cache: tuple[int, ...], dtype: object = np.float32, tokens=(BATCH, NEW)) -> Call:
    call = Call("flash_kv_append", _abi.flash_kv_append_args_t(dtype=_abi.FLASH_DTYPE_FP32))
    call.put_tensor("k_new", call.random(*tokens, N_HEADS_KV, D_HEAD))
    call.put_tensor("v_new", call.random(*tokens, N_HEADS_KV, D_HEAD))
    call.put_tensor("k", np.zeros(cache, dtype), is_output=True)
    call.put_tensor("v", np.zeros(cache, dtype), is_output=True)
    for name, value in {
        "batch": BATCH, "seqlen_new": tokens[-1], "n_heads_kv": N_HEADS_KV, "d_head": D_HEAD,
    }.items():  # fmt: skip
        setattr(call.args, name, value)
    return call


def _put_queries(call: Call) -> None:
    tokens = call.arrays["k_new"].shape[:-2]
    call.put_tensor("q", call.random(*tokens, N_HEADS, D_HEAD))
    call.put_tensor("q_out", np.zeros((*tokens, N_HEADS, D_HEAD), np.float32), is_output=True)
    call.args.seqlen_q, call.args.n_heads = tokens[-1], N_HEADS
    rotary = _abi.flash_rotary_t(
        dtype=_abi.FLASH_DTYPE_FP32, n_positions=N_POSITIONS, rotary_dim=2 * PAIRS
    )
    call.put_struct("rotary", rotary)
    call.put("rotary.cos", call.random(N_POSITIONS, PAIRS))
    call.put("rotary.sin", call.random(N_POSITIONS, PAIRS))
    call.put_stride("rotary.stride_position", "rotary.cos", 0)


def _put_lengths(call: Call) -> None:
    call.put("seqused_k", [2, 0])
    call.put_output("seqused_k_out", (BATCH,), np.int32)


def appended() -> Call:
    """A contiguous cache."""
    call = _append((BATCH, SEQLEN_K, N_HEADS_KV, D_HEAD))
    call.args.seqlen_k = SEQLEN_K
    _put_queries(call)
    _put_lengths(call)
    return call


def appended_to_pages() -> Call:
    call = _append((N_PAGES, PAGE_SIZE, N_HEADS_KV, D_HEAD), E4M3)
    _put_queries(call)
    _put_scales(call)
    _put_table(call)
    _put_lengths(call)
    call.put("paging.page_rows64", [1, 0], np.int64)
    call.put("rotary.start", [2, 0])
    return call


def appended_by_indptr() -> Call:
    """Ragged new tokens and queries."""
    call = _append((N_PAGES, PAGE_SIZE, N_HEADS_KV, D_HEAD), tokens=(BATCH * NEW,))
    _put_queries(call)
    _put_table(call)
    _use_indptr(call)
    _put_lengths(call)
    call.put("cu_seqlens_new", [0, 2, 6])
    call.put("cu_seqlens_q", [0, 2, 6])
    return call


def appended_to_slots() -> Call:
    call = _append((N_PAGES, PAGE_SIZE, N_HEADS_KV, D_HEAD))
    _put_queries(call)
    call.put_struct("paging", _abi.flash_paging_t(page_size=PAGE_SIZE, n_pages=N_PAGES))
    call.put("slot_mapping", [0, 17, -1, 5, 6, 11], np.int64)
    call.put("rotary.positions", [0, 1, 2, 11, 5, 3], np.int64)
    return call


CALLS: dict[str, Callable[[], Call]] = {
    build.__name__: build
    for build in (
        padded, ragged, quantised, paged, paged_by_indptr, gradients, ragged_gradients,
        combined, combined_from_lists, quantised_tensor, quantised_ragged,
        appended, appended_to_pages, appended_by_indptr, appended_to_slots,
    )
}  # fmt: skip


def structs() -> list[type]:
    """Returns the structs of the header that have members of these calls."""
    found = [value for value in vars(_abi).values() if isinstance(value, type)]
    return [s for s in found if issubclass(s, ctypes.Structure) and hasattr(s, "_fields_")]


def members(of: Callable[[str, type], bool]) -> set[str]:
    """Returns the members with a name and type that suit, as in flash_mask_t.stride_key; those of
    tensors by the tensor, as in flash_forward_args_t.q.stride_seq."""
    found: set[str] = set()
    for struct in structs():
        for name, kind in struct._fields_:
            path = f"{struct.__name__}.{name}"
            if kind is _abi.flash_tensor_t:
                found |= {f"{path}.{m}" for m, t in kind._fields_ if of(m, t)}
            elif struct is not _abi.flash_tensor_t and of(name, kind):
                found.add(path)
    return found
