"""New tokens of latent caches, for tests on CPUs and on GPUs."""

from __future__ import annotations

import numpy as np
from flashattn import latent
from memory import dtype_of


def new_tokens(dtype: str, n: int) -> np.ndarray:
    """Returns [n, 2, 576] with columns of zeros, of tiny numbers, also of some whose scale would be
    0, of large and infinite ones, and of NaN."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((n, 2, latent.COLUMNS)) * np.exp(rng.uniform(-8, 8, (n, 2, 1)))
    x[0, 0, :128], x[0, 1, 128:256], x[1, 0, 256:384] = 0, 1e-40, 6e4
    x[5, 1, 384:512], x[6, 0, :128] = 1e-44, 3e-43
    x[2, 1, 3], x[3, 0, 500], x[4, 1, 200:220] = np.nan, np.inf, -np.inf
    return x.astype(dtype_of(dtype))
