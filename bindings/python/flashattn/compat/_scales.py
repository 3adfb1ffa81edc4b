"""This module maps scales of e4m3: FlashAttention-3 has them for Q, K and V, and the binding has
kernels for such a Q on the CPU alone."""

from __future__ import annotations

import torch
from torch import Tensor

_E4M3 = torch.float8_e4m3fn


def decoded_query(
    q: Tensor,
    k: Tensor,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Returns q in a type that the library takes, and the binding's keywords for the scales.

    On the CPU q of e4m3 stays as it is. On a CUDA device it becomes bfloat16, which holds its
    values exactly, and its scale, [batch, n_heads_kv] as that of k, multiplies that of k, since
    scores are products of both. Without e4m3 in k the scales are ignored, as in FlashAttention-3.
    """
    if k.dtype != _E4M3:
        if q.dtype == _E4M3:
            raise ValueError(f"q is {q.dtype}, and k {k.dtype}: k and v must be {_E4M3} too")
        return q, {}
    if q.dtype == _E4M3 and q.is_cpu:
        return q, {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if q.dtype == _E4M3:
        q = q.to(torch.bfloat16)
        if q_descale is not None:
            if k_descale is not None and k_descale.shape != q_descale.shape:
                raise ValueError(
                    f"q_descale has shape {tuple(q_descale.shape)}, and k_descale "
                    f"{tuple(k_descale.shape)}"
                )
            k_descale = q_descale if k_descale is None else q_descale * k_descale
    elif q_descale is not None:
        raise ValueError(f"q_descale is given, and q is {q.dtype}, which has no scale")
    return q, {"k_descale": k_descale, "v_descale": v_descale}
