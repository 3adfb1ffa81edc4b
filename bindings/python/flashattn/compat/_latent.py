"""This module handles caches of latent attention (MLA), as engines hand them to FlashAttention-3:
of one tensor, v_cache is the first columns and k_cache those behind them."""

from __future__ import annotations

from torch import Tensor, cat


def _is_one_cache(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Returns whether each row of k_cache lies behind that of v_cache."""
    return (
        k_cache.shape[:-1] == v_cache.shape[:-1]
        and k_cache.stride() == v_cache.stride()
        and k_cache.dtype == v_cache.dtype
        and k_cache.stride(-1) == 1
        and k_cache.untyped_storage()._cdata == v_cache.untyped_storage()._cdata
        and k_cache.storage_offset() == v_cache.storage_offset() + v_cache.shape[-1]
    )


def join_latent(q: Tensor, k_cache: Tensor, v_cache: Tensor, qv: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the (q, k) whose scores are Q K^T + Qv V^T: q is a copy, and k a view of the cache,
    of which v_cache is the first columns. Raises NotImplementedError where there is no such view,
    and ValueError where qv does not go with q and v_cache."""
    if not _is_one_cache(k_cache, v_cache):
        raise NotImplementedError(
            "qv is given, and v_cache and k_cache are not neighbouring columns of one tensor, "
            "v_cache's first"
        )
    expected = (*q.shape[:-1], v_cache.shape[-1])
    if qv.shape != expected or qv.dtype != q.dtype:
        raise ValueError(
            f"qv is {qv.dtype} {tuple(qv.shape)}, not {q.dtype} {expected}, as q and v_cache are"
        )
    columns = v_cache.shape[-1] + k_cache.shape[-1]
    return cat([qv, q], dim=-1), v_cache.as_strided(
        (*v_cache.shape[:-1], columns), v_cache.stride()
    )
