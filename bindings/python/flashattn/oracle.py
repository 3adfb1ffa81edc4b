"""This module computes attention as its definition says, in float64: the oracle of the tests and of
`check`.

It is written for reading and independent of the kernels: one sequence and one head at a time, the
whole matrix of scores, the mask spelled out. `naive` takes the same three steps as a plain
implementation would (float32 scores; P rounded to V's type and O to its own); the distance between
the two sets the tolerance of compare.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from . import dropout

Lengths = Optional[Sequence[int]]
Scales = Optional[np.ndarray]  # [batch, n_heads_kv], or one number


# P is multiplied by each of these before it is rounded, and divided by it afterwards.
_LEAST = np.finfo(np.float32).min
_P_OF_FP8 = 256.0
_PLACES_OF_ROUNDING = (1.0, 2**0.25, 2**0.5, 2**0.75)


@dataclass(frozen=True)
class Precision:
    """Holds the types that an implementation computes in: of scores and sums, of P (rounded at each
    of `places`) and of O. P is rounded as weights whose sum is 1, or relative to the row's largest
    one."""

    compute: np.dtype
    p: np.dtype
    o: np.dtype
    places: tuple[float, ...] = (1.0,)
    is_relative: bool = False

    def round_p(self, p: np.ndarray, place: float) -> np.ndarray:
        """Returns P, rounded at one of the places."""
        largest = p.max(axis=-1, keepdims=True, initial=0) if self.is_relative else 1
        factor = place / np.where(largest > 0, largest, 1)
        return (p * factor).astype(self.p).astype(self.compute) / factor

    def round_o(self, x: np.ndarray) -> np.ndarray:
        return x.astype(self.o).astype(self.compute)


@dataclass(frozen=True)
class Mask:
    """Holds a causal mask, a window, of which -1 is an unbounded side, and chunks of `chunk` keys,
    0: none, and the offset of the diagonal from which they count."""

    causal: bool
    window_left: int
    window_right: int
    chunk: int = 0
    offset: int = 0

    def visible(self, len_q: int, len_k: int) -> np.ndarray:
        """Returns [len_q, len_k]: whether query i sees key j, aligned bottom-right."""
        diagonal = _places(len_q, len_k, self.offset)
        j = np.arange(len_k)[None, :]
        sees = np.ones((len_q, len_k), bool)
        if self.causal:
            sees &= j <= diagonal
        if self.window_left >= 0:
            sees &= j >= diagonal - self.window_left
        if self.window_right >= 0:
            sees &= j <= diagonal + self.window_right
        if self.chunk > 0:
            sees &= j // self.chunk == diagonal // self.chunk
        return sees


def _places(len_q: int, len_k: int, offset: int) -> np.ndarray:
    """Returns [len_q, 1]: the key at which each query stands."""
    return np.arange(len_q)[:, None] + len_k - len_q + offset


@dataclass(frozen=True)
class Bias:
    """Holds what joins scaled scores: slopes of ALiBi [n_heads] or [batch, n_heads], and a mask
    that broadcasts to [batch, n_heads, seqlen_q, n_keys], with ragged queries to [n_heads, total_q,
    n_keys]. A mask of numbers is added, and -infinity hides; one of bool says what is seen.
    mask_keys says that its columns are the last so many keys of a sequence; None: the first.
    Numbers are multiplied by factors [n_heads], all but -infinity and 0; no product hides. offset
    is that of the diagonal, from which distances count."""

    slopes: np.ndarray | None
    mask: np.ndarray | None
    mask_keys: int | None
    factors: np.ndarray | None
    offset: int

    def join(self, scores: np.ndarray, b: int, head: int, q_at: tuple) -> np.ndarray:
        """Returns scores [len_q, len_k] of a head of sequence b with the bias. q_at is the index of
        the sequence's queries in Q."""
        scores = scores.copy()
        len_q, len_k = scores.shape
        if self.slopes is not None:
            diagonal = _places(len_q, len_k, self.offset)
            distance = np.abs(diagonal - np.arange(len_k)[None, :]).astype(scores.dtype)
            slope = self.slopes[head] if self.slopes.ndim == 1 else self.slopes[b, head]
            scores -= scores.dtype.type(slope) * distance
        if self.mask is not None:
            factor = 1.0 if self.factors is None else float(self.factors[head])
            self._mask(scores, self._row_of(b, head, q_at, len_q), factor)
        return scores

    def _row_of(self, b: int, head: int, q_at: tuple, len_q: int) -> np.ndarray:
        """Returns the mask's rows [len_q, n_keys] of a head of sequence b."""
        n_axes = 2 + len(q_at)  # (b, queries) of a padded Q, (tokens,) of a ragged one
        mask = self.mask.reshape((1,) * (n_axes - self.mask.ndim) + self.mask.shape)
        if n_axes == 4:
            mask = mask[b if mask.shape[0] > 1 else 0]
        mask = mask[head if mask.shape[0] > 1 else 0]
        rows = mask[q_at[-1]] if mask.shape[0] > 1 else mask
        return np.broadcast_to(rows, (len_q, mask.shape[1]))

    def _mask(self, scores: np.ndarray, mask: np.ndarray, factor: float) -> None:
        len_k, n_keys = scores.shape[1], mask.shape[1]
        first = 0 if self.mask_keys is None else len_k - n_keys
        columns = np.arange(max(first, 0), min(first + n_keys, len_k))
        covered = mask[:, columns - first]
        if covered.dtype == bool:
            hidden, added = ~covered, 0
        else:
            covered = covered.astype(scores.dtype)
            hidden = covered == -np.inf
            product = np.maximum(covered * scores.dtype.type(factor), _LEAST)
            added = np.where(hidden | (covered == 0), covered, product)
        scores[:, columns] = np.where(hidden, -np.inf, scores[:, columns] + added)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: object
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) in float64; shapes and options are as in flash_attn_func and
    flash_attn_varlen_func."""
    exact = Precision(*(np.dtype(np.float64),) * 3)
    o, lse = _attention(q, k, v, exact, **options)
    return o[0], lse


def naive(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    roundings: int = 1,
    p_dtype: np.dtype | None = None,
    o_dtype: np.dtype | None = None,
    **options: object,
) -> np.ndarray:
    """Returns [roundings, *O.shape]: O of the three-step attention with scores in float32, P in
    p_dtype (None: v's type) and O in o_dtype (None: q's). Beyond the first, P is rounded at other
    places of a binade (up to four), as it is where the softmax is not relative to the row's
    maximum."""
    types = (p_dtype or v.dtype, o_dtype or q.dtype)
    plain = Precision(np.dtype(np.float32), *types, _PLACES_OF_ROUNDING[:roundings])
    return _attention(q, k, v, plain, **options)[0]


def of_rounded_p(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, p_dtype: np.dtype, **options: object
) -> np.ndarray:
    """Returns O in float64 of exact attention but for P, which is rounded as kernels that multiply
    in FP8 round it: to p_dtype, relative to the row's maximum, times 2^8. The sum is of unrounded
    P."""
    double = np.dtype(np.float64)
    precision = Precision(double, p_dtype, double, (_P_OF_FP8,), is_relative=True)
    return _attention(q, k, v, precision, **options)[0][0]


def combine(
    o_partial: np.ndarray, lse_partial: np.ndarray, sinks: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) in float64 of partial results [n, batch, seqlen_q, n_heads, d_head], their
    LSE [n, batch, n_heads, seqlen_q] and sinks [n_heads], which LSE is without."""
    of_heads = -np.inf if sinks is None else sinks.astype(np.float64)[:, None, None]
    weight, lse = softmax(np.moveaxis(lse_partial.astype(np.float64), 0, -1), of_heads)
    weight = weight.transpose(3, 0, 2, 1)[..., None]
    o = np.where(weight > 0, o_partial.astype(np.float64), 0)  # a row without weight is not read
    return (weight * o).sum(axis=0), lse


def largest_score(q: np.ndarray, k: np.ndarray, softmax_scale: float | None = None) -> float:
    """Returns a bound on |scaled scores|: beyond 32, float32 scores themselves lose digits."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    longest = [np.linalg.norm(x.astype(np.float64), axis=-1).max(initial=0) for x in (q, k)]
    return float(scale * longest[0] * longest[1])


@dataclass(frozen=True)
class Pages:
    """Holds where the keys of sequences lie in k and v of [n_pages, page_size, n_heads_kv, d_head],
    by the arguments of flash_attn_func of these names. Without a table rows are slots."""

    table: np.ndarray | None = None
    v_table: np.ndarray | None = None
    indptr: Lengths = None
    rows: Lengths = None

    def keys(self, pool: np.ndarray, table: np.ndarray | None, b: int, length: int) -> np.ndarray:
        """Returns the keys of sequence b: [length, n_heads_kv, d_head]."""
        row = b if self.rows is None else int(self.rows[b])
        if table is None:
            return pool[row, :length]
        j = np.arange(length)
        ids = table[self.indptr[b] :] if self.indptr is not None else table[row]
        return pool[ids[j // pool.shape[1]], j % pool.shape[1]]


def _attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    precision: Precision,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    diagonal_offset: int = 0,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
    alibi_slopes: np.ndarray | None = None,
    attn_mask: np.ndarray | None = None,
    mask_keys: int | None = None,
    mask_head_scale: np.ndarray | None = None,
    cu_seqlens_q: Lengths = None,
    cu_seqlens_k: Lengths = None,
    seqused_q: Lengths = None,
    seqused_k: Lengths = None,
    leftpad_k: Lengths = None,
    pages: Pages | None = None,
    k_descale: Scales = None,
    v_descale: Scales = None,
    q_descale: Scales = None,
    dropout_p: float = 0.0,
    rng_state: tuple[int, int] | None = None,
    hidden_keys: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE), O once per place of rounding. Rows that are not used (seqused_q) have O = 0
    and LSE = -infinity. hidden_keys, bool [batch, keys], are those that no query sees, as in the
    holes of a page table."""
    n_heads, d_head = q.shape[-2:]
    group = n_heads // k.shape[-2] if n_heads else 1
    scale = d_head**-0.5 if softmax_scale is None else softmax_scale
    mask = Mask(causal, *window_size, attention_chunk, diagonal_offset)
    bias = Bias(alibi_slopes, attn_mask, mask_keys, mask_head_scale, diagonal_offset)
    o = np.zeros((len(precision.places), *q.shape[:-1], v.shape[-1]), precision.compute)
    lse = np.full((*q.shape[:-3], n_heads, q.shape[-3]), -np.inf, precision.compute)

    for b in range(batch_size(q, k, cu_seqlens_q, cu_seqlens_k)):
        q_at = tokens(b, cu_seqlens_q, used(seqused_q, b))
        k_at = tokens(b, cu_seqlens_k, used(seqused_k, b))
        if pages is not None:
            length = k_at[-1].stop - k_at[-1].start
            k_b = pages.keys(k, pages.table, b, length)
            v_table = pages.table if pages.v_table is None else pages.v_table
            v_b = pages.keys(v, v_table, b, length)
        else:
            k_b, v_b = k[k_at], v[k_at]
        if leftpad_k is not None:
            k_b, v_b = k_b[int(leftpad_k[b]) :], v_b[int(leftpad_k[b]) :]
        hidden = False if hidden_keys is None else hidden_keys[b][: len(k_b)]
        lse_at = (*q_at[:-1], slice(None), q_at[-1])
        for head in range(n_heads):
            own = head // group
            q_scale = _scale_of_rows(q_descale, b, own, (*q_at, head), len(q.shape))
            o[(slice(None), *q_at)][:, :, head], lse[lse_at][head] = _attend(
                _decoded(q[q_at][:, head], q_scale, precision),
                _decoded(k_b[:, own], _scale_of(k_descale, b, own), precision),
                _decoded(v_b[:, own], _scale_of(v_descale, b, own), precision),
                scale,
                softcap,
                functools.partial(bias.join, b=b, head=head, q_at=q_at),
                -np.inf if sinks is None else precision.compute.type(sinks[head]),
                mask,
                hidden,
                dropout.factors(dropout_p, rng_state, b, n_heads, head, len(q[q_at]), len(k_b)),
                precision,
            )
    return o, lse


def _scale_of(scales: Scales, b: int, head: int) -> float:
    if scales is None:
        return 1.0
    return float(scales if np.ndim(scales) == 0 else scales[b][head])


def _scale_of_rows(scales: Scales, b: int, own: int, at: tuple, n_axes: int) -> float | np.ndarray:
    """Returns the scale of a head of Q, or [len_q, 1] where each token has one."""
    if np.ndim(scales) == n_axes:
        return scales[at]
    return _scale_of(scales, b, own)


def _decoded(x: np.ndarray, scale: float | np.ndarray, precision: Precision) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(precision.compute) * np.asarray(scale, precision.compute)


def batch_size(q: np.ndarray, k: np.ndarray, cu_seqlens_q: Lengths, cu_seqlens_k: Lengths) -> int:
    if cu_seqlens_q is not None:
        return len(cu_seqlens_q) - 1
    if cu_seqlens_k is not None:
        return len(cu_seqlens_k) - 1
    return q.shape[0]


def used(seqused: Lengths, b: int) -> int | None:
    return None if seqused is None else int(seqused[b])


def tokens(b: int, cu_seqlens: Lengths, used: int | None) -> tuple:
    """Returns the index of sequence b's tokens: rows of a ragged tensor, or an entry of a padded
    batch."""
    if cu_seqlens is None:
        return (b, slice(0, used))
    begin = int(cu_seqlens[b])
    return (slice(begin, int(cu_seqlens[b + 1]) if used is None else begin + used),)


def _attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    softcap: float,
    join_bias: Callable[[np.ndarray], np.ndarray],
    sink: float,
    mask: Mask,
    hidden: np.ndarray | bool,
    factors: np.ndarray | float,
    precision: Precision,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns O [places, len_q, d_head_v] and LSE [len_q] of one head of one sequence. Dropout
    multiplies its weights by `factors`."""
    visible = mask.visible(len(q), len(k)) & ~np.asarray(hidden)
    with np.errstate(all="ignore"):
        scores = (q @ k.T) * precision.compute.type(scale)
        if softcap > 0:
            scores = softcap * np.tanh(scores / softcap)
        scores = join_bias(scores)
        p, lse = softmax(np.where(visible, scores, -np.inf).astype(precision.compute), sink)
        p = (p * factors).astype(precision.compute)
        o = [weighted_sum(precision.round_p(p, x), v, visible) for x in precision.places]
    return precision.round_o(np.stack(o)), lse


def softmax(
    scores: np.ndarray, sink: np.ndarray | float = -np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the softmax along the last axis and the log of the sum of exponentials. The sink is
    one more score of a row, which takes weight, but has none of its own here and no part in that
    log. A row of nothing but -inf has no weight anywhere, and an LSE of -inf."""
    with np.errstate(all="ignore"):
        highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        highest = np.where(highest == -np.inf, 0, highest)
        p = np.exp(scores - highest)
        total = p.sum(axis=-1, keepdims=True)
        lse = np.log(total) + highest
        divisor = total + np.exp(sink - highest)
        return np.where(total == 0, 0, p / divisor), lse[..., 0]


def weighted_sum(p: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Returns P V over visible keys only: elsewhere a weight of 0 times NaN or infinity would be
    NaN."""
    finite = np.isfinite(v)
    o = p @ np.where(finite, v, 0)
    touched = (visible & ~finite.all(axis=-1)).any(axis=-1)
    for i in np.flatnonzero(touched):
        o[i] = p[i, visible[i]] @ v[visible[i]]
    return o
