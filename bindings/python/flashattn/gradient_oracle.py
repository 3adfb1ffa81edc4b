"""This module computes gradients of attention as their definitions say, in float64: the oracle of
the tests of gradients.

It is written for reading and independent of the kernels, as oracle.py is, whose masks and softmax
it takes: one sequence and one head at a time, the whole matrices of scores, P and dS. `naive` takes
the same steps as a plain implementation would (float32 scores and sums; P and dS rounded to the
type of K and V, O to its own); the distance between the two sets the tolerance of
compare.compare_gradient(), which rounds the gradients to their types.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import dropout, oracle


class Gradients(NamedTuple):
    """Holds the gradients of Q, K, V and the sinks (None without sinks)."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    d_sinks: np.ndarray | None


@dataclass(frozen=True)
class Precision:
    """Holds the types that an implementation computes in: of scores and sums, and of P and dS. With
    magnitudes=True it adds up the magnitudes of the terms of each sum instead of the terms."""

    compute: np.dtype
    p: np.dtype
    magnitudes: bool = False

    def round(self, x: np.ndarray) -> np.ndarray:
        return x.astype(self.p).astype(self.compute)

    def term(self, x: np.ndarray) -> np.ndarray:
        return np.abs(x) if self.magnitudes else x


def gradients(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    d_o: np.ndarray,
    d_lse: np.ndarray | None = None,
    **options: object,
) -> Gradients:
    """Returns the gradients in float64. d_o is shaped as O and d_lse as LSE; the other arguments
    are those of oracle.attention() but pages and scales."""
    exact = Precision(np.dtype(np.float64), np.dtype(np.float64))
    return _gradients(q, k, v, d_o, d_lse, None, exact, **options)


def magnitudes(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    d_o: np.ndarray,
    d_lse: np.ndarray | None = None,
    **options: object,
) -> Gradients:
    """Returns what the gradients would be if no two of their terms had different signs."""
    exact = Precision(np.dtype(np.float64), np.dtype(np.float64), magnitudes=True)
    return _gradients(q, k, v, d_o, d_lse, None, exact, **options)


def naive(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    d_o: np.ndarray,
    d_lse: np.ndarray | None = None,
    *,
    o: np.ndarray,
    p_dtype: np.dtype | None = None,
    **options: object,
) -> Gradients:
    """Returns gradients in float32, before they are rounded to their types, with scores and sums in
    float32 and P and dS in p_dtype (None: v's type). o is the rounded O of the forward pass."""
    plain = Precision(np.dtype(np.float32), np.dtype(p_dtype or v.dtype))
    return _gradients(q, k, v, d_o, d_lse, o, plain, **options)


def naive_of(p_dtypes: Iterable[np.dtype], *call: np.ndarray, **options: object) -> Gradients:
    """Returns those of naive() for each type of P and dS: [n, *shape] for n types."""
    found = [naive(*call, p_dtype=p_dtype, **options) for p_dtype in p_dtypes]
    return Gradients(*(None if x[0] is None else np.stack(x) for x in zip(*found)))


def _gradients(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    d_o: np.ndarray,
    d_lse: np.ndarray | None,
    o: np.ndarray | None,
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
    cu_seqlens_q: oracle.Lengths = None,
    cu_seqlens_k: oracle.Lengths = None,
    seqused_q: oracle.Lengths = None,
    seqused_k: oracle.Lengths = None,
    leftpad_k: oracle.Lengths = None,
    dropout_p: float = 0.0,
    rng_state: tuple[int, int] | None = None,
) -> Gradients:
    """Rows that are not used have gradients of 0. o: None: O of the computed P."""
    n_heads, d_head = q.shape[-2:]
    group = n_heads // k.shape[-2] if n_heads else 1
    scale = d_head**-0.5 if softmax_scale is None else softmax_scale
    mask = oracle.Mask(causal, *window_size, attention_chunk, diagonal_offset)
    bias = oracle.Bias(alibi_slopes, attn_mask, mask_keys, mask_head_scale, diagonal_offset)
    dq, dk, dv = (np.zeros(x.shape, precision.compute) for x in (q, k, v))
    d_sinks = None if sinks is None else np.zeros(n_heads, precision.compute)

    for b in range(oracle.batch_size(q, k, cu_seqlens_q, cu_seqlens_k)):
        q_at = oracle.tokens(b, cu_seqlens_q, oracle.used(seqused_q, b))
        k_at = oracle.tokens(b, cu_seqlens_k, oracle.used(seqused_k, b))
        if leftpad_k is not None:
            first = k_at[-1].start + int(leftpad_k[b])
            stop = k.shape[-3] if k_at[-1].stop is None else k_at[-1].stop
            k_at = (*k_at[:-1], slice(min(first, stop), stop))
        lse_at = (*q_at[:-1], slice(None), q_at[-1])
        for head in range(n_heads):
            own = head // group
            row = _Rows(
                q=q[q_at][:, head].astype(precision.compute),
                k=k[k_at][:, own].astype(precision.compute),
                v=v[k_at][:, own].astype(precision.compute),
                d_o=d_o[q_at][:, head].astype(precision.compute),
                o=None if o is None else o[q_at][:, head].astype(precision.compute),
                d_lse=None if d_lse is None else d_lse[lse_at][head].astype(precision.compute),
                sink=-np.inf if sinks is None else precision.compute.type(sinks[head]),
            )
            join_bias = functools.partial(bias.join, b=b, head=head, q_at=q_at)
            factors = dropout.factors(
                dropout_p, rng_state, b, n_heads, head, len(row.q), len(row.k)
            )
            found = _of_head(row, scale, softcap, join_bias, mask, factors, precision)
            dq[q_at][:, head] = found.dq
            dk[k_at][:, own] += found.dk
            dv[k_at][:, own] += found.dv
            if d_sinks is not None:
                d_sinks[head] += found.d_sinks
    return Gradients(dq, dk, dv, d_sinks)


@dataclass(frozen=True)
class _Rows:
    """Holds what one head of one sequence has, without the axis of heads."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    d_o: np.ndarray
    o: np.ndarray | None
    d_lse: np.ndarray | None
    sink: float


def _of_head(
    x: _Rows,
    scale: float,
    softcap: float,
    join_bias: Callable[[np.ndarray], np.ndarray],
    mask: oracle.Mask,
    factors: np.ndarray | float,
    precision: Precision,
) -> Gradients:
    """Returns the gradients of one head of one sequence, whose weights dropout multiplies by
    `factors`; d_sinks is a number."""
    visible = mask.visible(len(x.q), len(x.k))
    term, rounded = precision.term, precision.round
    with np.errstate(all="ignore"):
        scores = (x.q @ x.k.T) * precision.compute.type(scale)
        slope = np.ones_like(scores)
        if softcap > 0:
            capped = np.tanh(scores / precision.compute.type(softcap))
            slope = 1 - capped**2
            scores = precision.compute.type(softcap) * capped
        scores = np.where(visible, join_bias(scores), -np.inf).astype(precision.compute)
        seen = scores != -np.inf
        p, without_sink = (
            np.where(seen, oracle.softmax(scores, sink)[0], 0) for sink in (x.sink, -np.inf)
        )
        kept = (p * factors).astype(precision.compute)
        o = oracle.weighted_sum(kept, x.v, seen) if x.o is None else x.o
        of_rows = np.where(seen.any(axis=-1), term(x.d_o * o).sum(axis=-1), 0)
        dp = (term(x.d_o) @ term(x.v).T * factors).astype(precision.compute)
        ds = p * (dp + of_rows[:, None] if precision.magnitudes else dp - of_rows[:, None])
        if x.d_lse is not None:
            ds += without_sink * term(x.d_lse)[:, None]
        ds = rounded(np.where(seen, ds * slope, 0))
        scale = precision.compute.type(scale)
        dq = scale * oracle.weighted_sum(ds, term(x.k), seen)
        dk = scale * oracle.weighted_sum(ds.T, term(x.q), seen.T)
        dv = oracle.weighted_sum(rounded(kept).T, term(x.d_o), seen.T)
        d_sink = -(_weight_of_sink(scores, x.sink) * of_rows).sum()
    return Gradients(dq, dk, dv, np.asarray(d_sink))


def _weight_of_sink(scores: np.ndarray, sink: float) -> np.ndarray:
    """Returns the weight of the sink in each row that sees a key."""
    highest = scores.max(axis=-1, initial=-np.inf)
    sees = highest != -np.inf
    if sink in (-np.inf, np.inf):
        return np.where(sees & (sink > 0), 1.0, 0.0)
    total = np.exp(scores - np.where(sees, highest, 0)[:, None]).sum(axis=-1)
    return np.where(sees, 1 / (1 + total * np.exp(np.where(sees, highest, 0) - sink)), 0)
