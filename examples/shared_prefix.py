"""Decodes many sequences that begin with the same tokens: one call reads their keys once for all, a
second one the keys that each has of its own, and flash_combine merges both.

python examples/shared_prefix.py
"""

import time

import flashattn
import numpy as np

BATCH, N_PREFIX, N_HEADS, N_HEADS_KV, D_HEAD = 16, 4096, 8, 2, 64
rng = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


q = numbers(BATCH, N_HEADS, D_HEAD)  # a query for each sequence
prefix_k, prefix_v = numbers(2, 1, N_PREFIX, N_HEADS_KV, D_HEAD)
own_lengths = rng.integers(1, 200, BATCH).astype(np.int32)
own_k, own_v = numbers(2, BATCH, 200, N_HEADS_KV, D_HEAD)


def decode_with_prefix_shared() -> np.ndarray:
    """Returns O [BATCH, N_HEADS, D_HEAD]. All queries see the whole prefix, so that for the first
    call they are queries of one sequence."""
    of_prefix = flashattn.flash_attn_func(q[None], prefix_k, prefix_v, return_lse=True)
    of_own = flashattn.flash_attn_func(
        q[:, None], own_k, own_v, seqused_k=own_lengths, return_lse=True
    )
    o = np.stack((of_prefix[0][0], of_own[0][:, 0]))  # [2, BATCH, N_HEADS, D_HEAD]
    lse = np.stack((of_prefix[1][0], of_own[1][:, :, 0].T))  # [2, N_HEADS, BATCH]
    return flashattn.flash_combine(o, lse)


def decode_each_apart() -> np.ndarray:
    """Returns the same from caches in which each sequence has the prefix."""
    return flashattn.flash_attn_func(q[:, None], k, v, seqused_k=N_PREFIX + own_lengths)[:, 0]


k, v = (
    np.concatenate((np.repeat(prefix, BATCH, axis=0), own), axis=1)
    for prefix, own in ((prefix_k, own_k), (prefix_v, own_v))
)
np.testing.assert_allclose(decode_with_prefix_shared(), decode_each_apart(), atol=1e-5)
for decode in (decode_with_prefix_shared, decode_each_apart):
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        decode()
        times.append(time.perf_counter() - begin)
    print(f"{decode.__name__}: {1e3 * sorted(times)[4]:.2f} ms")
