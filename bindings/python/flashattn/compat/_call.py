"""This module calls flashattn.torch_ops with what flash-attn allows and the operators do not: an
innermost axis that is not contiguous, rows behind a ragged batch, and Q of e4m3 for which a CUDA
device has no kernel."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from .. import torch_ops
from ._arguments import contiguous_rows, ends_of, has_values
from ._scales import in_16_bits, may_be_refused, needs_16_bits


def attend_padded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Returns O of padded q, k and v, or (O, LSE) with return_lse=True. The options are keywords of
    torch_ops.flash_attn_func."""
    q, k, v = map(contiguous_rows, (q, k, v))
    return _attend(torch_ops.flash_attn_func, q, k, v, options)


def attend_ragged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """Returns O of a ragged batch, or (O, LSE) with return_lse=True. The options are keywords of
    torch_ops.flash_attn_varlen_func.

    A longest length that is None counts as the number of tokens. q may have more tokens than
    cu_seqlens_q covers: on the CPU their O is 0 and their LSE -infinity. Compiled graphs refuse
    them, since the number of rows to compute is not known there.
    """
    q, k, v = map(contiguous_rows, (q, k, v))
    options = options_of_ragged(
        q,
        k,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        **options,
    )
    n_rows = _covered_rows(q, options["cu_seqlens_q"])
    if n_rows == q.shape[0]:
        options["return_lse"] = return_lse
        return _attend(torch_ops.flash_attn_varlen_func, q, k, v, options)
    options["return_lse"] = True
    out, lse = _attend(torch_ops.flash_attn_varlen_func, q[:n_rows], k, v, options)
    n_others = q.shape[0] - n_rows
    out = torch.nn.functional.pad(out, (0, 0, 0, 0, 0, n_others))
    lse = torch.nn.functional.pad(lse, (0, n_others), value=-torch.inf)
    return (out, lse) if return_lse else out


def options_of_ragged(
    q: Tensor,
    k: Tensor,
    *,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    **options: Any,
) -> dict[str, Any]:
    """Returns keywords of torch_ops.flash_attn_varlen_func for these of attend_ragged()."""
    cu_seqlens_q = ends_of("cu_seqlens_q", cu_seqlens_q)
    cu_seqlens_k = ends_of("cu_seqlens_k", cu_seqlens_k)
    if options.get("page_table") is None:
        max_seqlen_k = _longest(k, cu_seqlens_k, max_seqlen_k)
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": _longest(q, cu_seqlens_q, max_seqlen_q),
        "max_seqlen_k": max_seqlen_k,
        **options,
    }


def covers_all_rows(q: Tensor, options: dict[str, Any]) -> bool:
    """Returns whether each row of q belongs to a sequence of the cu_seqlens_q of attend_ragged(),
    if there is one."""
    ends = ends_of("cu_seqlens_q", options.get("cu_seqlens_q"))
    return _covered_rows(q, ends) == q.shape[0]


def _attend(function: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, options: dict) -> Any:
    """Calls a function of torch_ops. q of e4m3 becomes bfloat16 on a CUDA device that has no kernel
    for it."""
    if needs_16_bits(q, v, options):
        q, options = in_16_bits(q, options)
    if not may_be_refused(q):
        return function(q, k, v, **options)
    try:
        return function(q, k, v, **options)
    except NotImplementedError:
        q, options = in_16_bits(q, options)
        return function(q, k, v, **options)


def _covered_rows(q: Tensor, cu_seqlens_q: Tensor | None) -> int:
    """Returns how many rows of q belong to a sequence where cu_seqlens_q can be looked at, and
    otherwise the number of all rows."""
    if cu_seqlens_q is None or not has_values(cu_seqlens_q):
        return q.shape[0]
    return min(q.shape[0], int(cu_seqlens_q[-1]))


def _longest(tensor: Tensor, cu_seqlens: Tensor | None, longest: int | None) -> int | None:
    """Returns the bound on the lengths of a ragged tensor; None for a padded one."""
    if cu_seqlens is None:
        return None
    return tensor.shape[0] if longest is None else int(longest)
