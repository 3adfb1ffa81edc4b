"""This module has the attention calls: flash_attn_func, its ragged form, merging, and queries of
what a call would do.

The contract is the C header's: softmax in fp32, masks aligned bottom-right, a row that sees no key
gives O = 0 and LSE = -inf. Arrays may be numpy's (float32, float16, ml_dtypes.bfloat16), torch
tensors, or anything with DLPack or an array interface. They are never copied, sinks of another
type than float32 excepted, and may have any strides except along the innermost axis, which must be
contiguous.

k and v have one type, or in CPU memory two. q may be float32 beside a k of 16 bits, and so may O,
which is of q's type unless out or out_dtype says otherwise. k and v may also be float8_e4m3fn,
torch's or that of ml_dtypes, with scales (k_descale, v_descale), beside a q of any other type, or,
in CPU memory, of that type too, with a scale of its own (q_descale): O is bfloat16 then, unless out
or out_dtype says otherwise. k and v may be tokens of a latent cache or rows of quantised blocks,
which kv_dtype says.

Arrays in CUDA memory (float16, bfloat16; O also float32) are computed on their device and on the
caller's current stream: torch's where torch brought a tensor, otherwise the one that
__cuda_array_interface__ names, otherwise the default stream. The call returns at once. Everything
that belongs to it, lengths too, lies on the same device.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import _abi, _numbers, _stream, _tensor, _workspace
from . import config as _config
from ._library import check, library
from ._problem import Problem
from ._sinks import sinks_view
from ._stream import is_torch
from .config import Config, ConfigLike
from .device import device_text
from .errors import FlashAttnLookupError

_REASON_SIZE = 1024


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    diagonal_offset: int = 0,
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
    attn_mask: Any = None,
    mask_bits: Any = None,
    mask_keys: int | None = None,
    mask_head_scale: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    leftpad_k: Any = None,
    page_table: Any = None,
    v_page_table: Any = None,
    page_indptr: Any = None,
    page_rows: Any = None,
    page_holes: bool = False,
    k_descale: Any = None,
    v_descale: Any = None,
    q_descale: Any = None,
    dropout_p: float = 0.0,
    rng_state: Any = None,
    page_scales: bool = False,
    kv_dtype: str | tuple[str | None, str | None] | None = None,
    batch_invariant: bool = False,
    n_multiprocessors: int = 0,
    return_lse: bool = False,
    out: Any = None,
    out_dtype: str | None = None,
    lse: Any = None,
    workspace: Any = None,
    config: ConfigLike = None,
) -> Any:
    """O = softmax(softmax_scale * Q K^T, masked) V.

    q                [batch, seqlen_q, n_heads, d_head]
    k                [batch, seqlen_k, n_heads_kv, d_head]; n_heads_kv divides n_heads, and query
                     head h uses K/V head h // (n_heads // n_heads_kv)
    v                [batch, seqlen_k, n_heads_kv, d_head_v]; d_head_v may differ from d_head
    softmax_scale    positive; None: 1 / sqrt(d_head)
    causal           query i sees key j when j <= i + seqlen_k - seqlen_q
    window_size      (left, right): keys seen to each side of that diagonal, -1: unbounded
    attention_chunk  with p = i + seqlen_k - seqlen_q, query i sees key j only if
                     p // attention_chunk == j // attention_chunk; none if p < 0. 0: no chunks
    diagonal_offset  query i stands at key i + seqlen_k - seqlen_q + diagonal_offset, and
                     causal, window_size, attention_chunk and alibi_slopes count from there: for
                     parts of a sequence's queries and keys, and for windows beside the query
    softcap          scores s become softcap * tanh(s / softcap); 0: none
    sinks            [n_heads]: one more logit per query head in the softmax, without a value:
                     O = sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink)). In units of scaled
                     scores; LSE is without it. float32; other floating-point types are copied
    alibi_slopes     [n_heads] or [batch, n_heads] float32: -slope * |i + seqlen_k - seqlen_q - j|
                     joins the score of query i and key j, after softcap
    attn_mask        broadcasts to [batch, n_heads, seqlen_q, seqlen_k]: numbers (float16, bfloat16,
                     float32) that join the scores, after softcap, -inf hides a key; or bool, True
                     where a query sees a key, which each call packs into bits (numpy, torch).
                     causal and window_size hold beside it. v must be finite where a mask hides.
                     A flashattn.BlockMask has blocks of queries and keys
    mask_bits        the same as words of bits, uint32 or int32, [batch, n_heads, seqlen_q, words]:
                     key j is bit j % 32, from the lowest on, of word j // 32
    mask_keys        the mask's last axis covers the last mask_keys keys of each sequence, and those
                     before are visible: a tree of drafts behind a prefix
    mask_head_scale  [n_heads] float32: a factor for each query head, by which the numbers of
                     attn_mask are multiplied, as slopes are with a mask of distances. Whatever it
                     is, -inf hides a key and 0 adds nothing
    seqused_q        [batch] int32: only the first seqused_q[b] queries of sequence b exist; rows of
                     out and lse beyond them are not written
    seqused_k        [batch] int32: only the first seqused_k[b] keys of sequence b exist
    leftpad_k        [batch] int32: nor do the first leftpad_k[b] keys of it, which seqused_k counts
                     too. Masks count keys from the first that exists. Not with page_table
    page_table       [batch, pages] int32: k and v are pages that sequences share, [n_pages,
                     page_size, n_heads_kv, d_head] (v: d_head_v), and row b has the pages of
                     sequence b in order; seqused_k is required (in flash_attn_varlen_func it or
                     cu_seqlens_k). Ids beyond a sequence's length are not looked at
    v_page_table     page_table of v, where it differs from that of k
    page_indptr      [batch + 1] int32: page_table is flat, and sequence b has page_table[
                     page_indptr[b]] up to page_indptr[b + 1]
    page_rows        [batch] int32 or int64: the row of page_table that sequence b has; without
                     page_table the entry of k and v that it has, its slot
    page_holes       ids of page_table below 0 are holes, anywhere in a row: the keys of their pages
                     count as places, but no query sees them and nothing is read for
                     them, in v_page_table neither
    k_descale        scale of a k of float8_e4m3fn, whose elements are multiplied by it: a number,
                     or a float32 array [batch, n_heads_kv] of any strides; None: 1
    v_descale        the same for v
    q_descale        the same for a q of float8_e4m3fn, with one scale for all query heads of a K/V
                     head; or a float32 array [batch, seqlen_q, n_heads, 1], ragged
                     [total_q, n_heads, 1]: a scale for each token and head
    dropout_p        at least 0, less than 1: weights are dropped with this probability, and those
                     that stay are multiplied by 1 / (1 - dropout_p); LSE is without. 0: none
    rng_state        two integers (seed, offset), needed with dropout_p: the same ones drop the same
                     weights, whatever kernel computes (flashattn.dropout.kept() says which). A
                     tuple, or an array [2] of int64 or uint64 on q's device, which is read when the
                     call computes, so that a captured graph may drop others each time
    page_scales      CPU only: k_descale and v_descale are [n_pages, n_heads_kv], or numbers: k and
                     v have a scale for each page and head
    kv_dtype         "latent_e4m3": k is an array of latent tokens, uint8 [..., 656] in place of
                     [..., d_head], and v the same array; q has a d_head of 576, O of 512
                     (flashattn.latent makes such arrays in CPU memory). "q8_0" or "q4_0": k and v
                     are rows of ggml's blocks, uint8 [..., d_head / 32 * 34] or 18 instead of 34,
                     in CPU memory (flashattn.quant_blocks makes them). A pair is the type of k and
                     that of v, as ("q8_0", None). None: the arrays say it, k and v each for itself
    batch_invariant  a sequence's output depends on its own tokens alone, bit for bit, not on the
                     batch size nor on its neighbours (CPU kernels always keep this)
    n_multiprocessors  CUDA only: compute as though the device had only so many, which leaves the
                     others to work beside attention, such as a collective; 0: all
    return_lse       also return the log-sum-exp, float32 [batch, n_heads, seqlen_q]
    out              array to write O to, [batch, seqlen_q, n_heads, d_head_v]; must not overlap the
                     inputs
    out_dtype        type of O, "float32", "float16" or "bfloat16"; None: that of out, else of q,
                     "bfloat16" beside q of float8_e4m3fn
    lse              array to write the LSE to, float32, of any strides; implies return_lse
    workspace        CUDA only: memory for the call to work in, a uint8 array on q's device, not
                     used by another stream meanwhile; None: torch allocates it if q is torch's
    config           Config or short form of the kernel to use; None: the library selects

    Returns O, or (O, LSE): `out` and `lse`, torch tensors if q is one, numpy arrays otherwise.
    CUDA arrays of other libraries than torch need `out`, `lse` where it is wanted, and `workspace`
    for kernels that need one (the message of a call without it says how many bytes).
    Raises ValueError (shapes, types, values), TypeError (not an array), NotImplementedError (no
    kernel serves it), MemoryError, FlashAttnError (everything else).
    """
    return _attend(locals())  # all arguments, by their names


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    leftpad_k: Any = None,
    page_table: Any = None,
    v_page_table: Any = None,
    page_indptr: Any = None,
    page_rows: Any = None,
    page_holes: bool = False,
    k_descale: Any = None,
    v_descale: Any = None,
    q_descale: Any = None,
    dropout_p: float = 0.0,
    rng_state: Any = None,
    page_scales: bool = False,
    kv_dtype: str | tuple[str | None, str | None] | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    diagonal_offset: int = 0,
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
    attn_mask: Any = None,
    mask_bits: Any = None,
    mask_keys: int | None = None,
    mask_head_scale: Any = None,
    batch_invariant: bool = False,
    n_multiprocessors: int = 0,
    return_lse: bool = False,
    out: Any = None,
    out_dtype: str | None = None,
    lse: Any = None,
    workspace: Any = None,
    config: ConfigLike = None,
) -> Any:
    """Computes flash_attn_func over a ragged batch: sequences of different lengths, one after the
    other.

    q              [total_q, n_heads, d_head]
    k              [total_k, n_heads_kv, d_head]
    v              [total_k, n_heads_kv, d_head_v]
    cu_seqlens_q   [batch + 1] int32 (on the CPU also a list): sequence b is tokens cu_seqlens_q[b]
                   up to cu_seqlens_q[b + 1]; from 0 up to total_q. None: q is padded,
                   [batch, seqlen_q, n_heads, d_head]
    cu_seqlens_k   the same for k and v; k and v may hold more tokens than it covers. Beside pages
                   it only has the lengths, of which seqused_k may leave some out
    max_seqlen_q   no sequence of q is longer; None where cu_seqlens_q is None
    max_seqlen_k   no sequence of k is longer; None where cu_seqlens_k is None, but for pages, where
                   it may be None, or less than what a row of page_table holds
    seqused_q      [batch] int32: only the first seqused_q[b] queries of sequence b exist
    seqused_k      [batch] int32: only the first seqused_k[b] keys of sequence b exist
    leftpad_k      [batch] int32: nor do the first leftpad_k[b] keys of it

    The rest is as in flash_attn_func, pages and scales too; LSE is float32 [n_heads, total_q]. A
    mask broadcasts to [n_heads, total_q, n_keys] where q is ragged. Where k is ragged or in pages,
    n_keys is any number: column j is key j of each sequence, and keys beyond are visible.
    """
    return _attend(locals())  # all arguments, by their names


def flash_combine(
    o_partial: Any,
    lse_partial: Any,
    *,
    sinks: Any = None,
    dtype: str | None = None,
    return_lse: bool = False,
    out: Any = None,
    lse: Any = None,
) -> Any:
    """Merges attention over disjoint sets of keys, computed apart, by their LSE.

    o_partial    [n_partials, batch, seqlen_q, n_heads, d_head], or of ragged batches, as
                 flash_attn_varlen_func returns O, [n_partials, total_q, n_heads, d_head]
    lse_partial  float32 [n_partials, batch, n_heads, seqlen_q], ragged [n_partials, n_heads,
                 total_q], contiguous; -inf: saw no key
    sinks        [n_heads] as in flash_attn_func, which join O once: the partial results must be
                 without them. The merged LSE is without them, too
    dtype        type of the result, "float32", "float16" or "bfloat16"; None: that of out, else of
                 o_partial
    return_lse   also return the merged LSE, float32 [batch, n_heads, seqlen_q], ragged [n_heads,
                 total_q]
    out          array to write O to, of the shape of a partial result
    lse          array to write the LSE to, float32, contiguous; implies return_lse

    Returns O, or (O, LSE), in the kind of o_partial; CUDA arrays as in flash_attn_func. Raises as
    flash_attn_func.
    """
    stream = _stream.of_call(
        o_partial=o_partial, lse_partial=lse_partial, sinks=sinks, out=out, lse=lse
    )
    partial = _tensor.tensor_view(o_partial, "o_partial", (4, 5), stream)
    is_ragged = len(partial.shape) == 4
    _tensor.check_dtype_name("dtype", dtype)
    n_partials, *batch, seqlen_q, n_heads, d_head = partial.shape
    lse_shape = (*batch, n_heads, seqlen_q)
    lse_in = _tensor.contiguous_lse_view(
        lse_partial, "lse_partial", (n_partials, *lse_shape), stream
    )
    if out is None:
        out = _tensor.empty(
            o_partial, partial.device, partial.shape[1:], dtype or partial.dtype, "out"
        )
    if lse is None and _numbers.is_true("return_lse", return_lse):
        lse = _tensor.empty(o_partial, partial.device, lse_shape, "float32", "lse")
    o = _merged_view(out, partial, dtype, stream)
    merged_lse = None
    if lse is not None:
        merged_lse = _tensor.contiguous_lse_view(lse, "lse", lse_shape, stream)
    sinks_in = None if sinks is None else sinks_view(sinks, n_heads, stream)
    _tensor.check_same_device(
        "o_partial", partial, lse_partial=lse_in, sinks=sinks_in, out=o, lse=merged_lse
    )
    _tensor.check_outputs(out=o, lse=merged_lse)
    args = _abi.flash_combine_args_t(
        device=partial.device,
        dtype=_tensor.DTYPES[o.dtype],
        flags=_abi.FLASH_FLAG_BROADCAST if partial.repeats else 0,
        o_partial=_tensor.c_tensor(_first_of(partial), ragged=is_ragged),
        stride_partial=partial.strides[0],
        lse_partial=lse_in.data,
        o=_tensor.c_tensor(o, ragged=is_ragged),
        lse=None if merged_lse is None else merged_lse.data,
        n_partials=n_partials,
        batch=1 if is_ragged else batch[0],
        seqlen_q=seqlen_q,
        n_heads=n_heads,
        d_head=d_head,
        sinks=None if sinks_in is None else sinks_in.data,
    )
    check(library().flash_combine(args, stream))
    return out if lse is None else (out, lse)


def _first_of(partial: _tensor.View) -> _tensor.View:
    return partial._replace(shape=partial.shape[1:], strides=partial.strides[1:])


def _merged_view(out: Any, partial: _tensor.View, dtype: str | None, stream: int) -> _tensor.View:
    o = _tensor.tensor_view(out, "out", len(partial.shape) - 1, stream)
    if o.shape != partial.shape[1:]:
        raise ValueError(f"out has shape {o.shape}, not {partial.shape[1:]}")
    if dtype is not None and o.dtype != dtype:
        raise ValueError(f"out is {o.dtype}, and dtype {dtype}")
    return o


@dataclass(frozen=True)
class Selection:
    """Holds the configuration that a call without one would use, and the reason for it."""

    config: Config
    reason: str


@dataclass(frozen=True)
class Support:
    """Says whether a call would run, which is also its truth value; if not, the condition that
    failed."""

    supported: bool
    reason: str

    def __bool__(self) -> bool:
        return self.supported


def select_config(q: Any, k: Any, v: Any, **options: Any) -> Selection:
    """Returns what flash_attn_func(q, k, v, **options) would use, and why.

    options are the keywords of flash_attn_func and flash_attn_varlen_func that describe the
    problem. Only sizes and types are looked at: np.broadcast_to(np.zeros(d_head, dtype), shape),
    which takes no memory, will do.
    """
    problem = Problem(q, k, v, options)
    kernel = ctypes.c_void_p()
    reason = ctypes.create_string_buffer(_REASON_SIZE)
    check(library().flash_select_kernel(problem.args, kernel, reason, len(reason)))
    return Selection(_config.config_of(kernel.value), reason.value.decode())


def query_support(q: Any, k: Any, v: Any, *, config: ConfigLike = None, **options: Any) -> Support:
    """Returns whether flash_attn_func(q, k, v, config=config, **options) would run.

    Raises what that call would raise for shapes and types that do not fit each other.
    """
    problem = Problem(q, k, v, options)
    try:
        kernel = _config.resolve(config)
    except FlashAttnLookupError as error:
        return Support(False, str(error))
    reason = ctypes.create_string_buffer(_REASON_SIZE)
    status = library().flash_query_support(problem.args, kernel, reason, len(reason))
    return Support(status == _abi.FLASH_SUCCESS, reason.value.decode())


def _attend(given: dict[str, Any]) -> Any:
    """Computes attention for the arguments of flash_attn_func or flash_attn_varlen_func, all of
    them."""
    take = given.pop
    q, out, lse, return_lse = take("q"), take("out"), take("lse"), take("return_lse")
    workspace, config = take("workspace"), take("config")
    problem = Problem(q, take("k"), take("v"), given)
    if out is None:
        out = _tensor.empty(q, problem.device, problem.o_shape, problem.o_dtype, "out")
    if lse is None and return_lse is not False and _numbers.is_true("return_lse", return_lse):
        lse = _tensor.empty(q, problem.device, problem.lse_shape, "float32", "lse")
    problem.set_output(out, lse)
    _launch(problem, _config.resolve(config), q, workspace)
    return out if lse is None else (out, lse)


def _launch(problem: Problem, kernel: int | None, like: Any, workspace: Any) -> None:
    args = problem.args
    size = workspace_size(args, kernel)
    if not size:
        check(library().flash_forward(args, kernel, problem.stream))
    elif problem.device == _abi.FLASH_DEVICE_CPU:  # without device_workspace(), which takes longer
        with _workspace.lent(size) as memory:
            _launch_with(args, kernel, problem.stream, memory.ctypes.data, memory.nbytes)
    else:
        with device_workspace(problem, size, like, workspace) as (address, n_bytes):
            _launch_with(args, kernel, problem.stream, address, n_bytes)


def _launch_with(
    args: _abi.flash_forward_args_t, kernel: int | None, stream: int, address: int, n_bytes: int
) -> None:
    args.workspace, args.workspace_size = address, n_bytes
    check(library().flash_forward(args, kernel, stream))


def _allocated(like: Any, device: int, size: int, least: int | None) -> Any:
    """Allocates `size` bytes by the library of `like`, torch; `least` where the device has no more
    and that is not None."""
    torch = sys.modules["torch"]
    try:
        return _tensor.empty(like, device, (size,), "uint8", "workspace")
    except torch.OutOfMemoryError:
        if least is None or least == size:
            raise
    return _tensor.empty(like, device, (least,), "uint8", "workspace")


@contextmanager
def device_workspace(
    problem: Problem, size: int, like: Any, given: Any = None, least: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yields (address, bytes) of at least `size` bytes of working memory on the problem's device,
    for one call. In CUDA memory it is `given`, which may have as few as `least` bytes if that is
    not None, or is allocated by the library of `like`.

    torch hands memory that is freed here to later work of the same stream only, which comes after
    the call's.
    """
    if problem.device == _abi.FLASH_DEVICE_CPU:
        with _workspace.lent(size) as memory:
            yield memory.ctypes.data, memory.nbytes
        return
    if given is None and not is_torch(like):
        raise ValueError(
            f"a {type(like).__name__} in CUDA memory needs {size} bytes to work in: workspace="
        )
    if given is None:
        given = _allocated(like, problem.device, size, least)
    _stream.check(problem.stream, workspace=given)
    memory = _tensor.bytes_view(given, "workspace", problem.stream)
    _tensor.check_outputs(workspace=memory)
    if memory.device != problem.device:
        raise ValueError(
            f"workspace is on {device_text(memory.device)}, q on {device_text(problem.device)}"
        )
    wanted = size if least is None else least
    if memory.shape[0] < wanted:
        raise ValueError(f"workspace has {memory.shape[0]} bytes, and the call wants {wanted}")
    yield memory.data, memory.shape[0]


def workspace_size(args: _abi.flash_forward_args_t, kernel: int | None) -> int:
    """Returns how many bytes of memory on its device the call wants. kernel is what
    config.resolve() returns."""
    size = ctypes.c_uint64()
    check(library().flash_workspace_size(args, kernel, size))
    return size.value
