"""This module says which attention weights a call with dropout drops: those that the library's
kernels drop, bit for bit, computed with numpy.

    kept = flashattn.dropout.kept(0.1, (seed, offset), batch, n_heads, seqlen_q, seqlen_k)

It is the oracle of the tests, and for who wants to look at the mask, which no call returns.
"""

from __future__ import annotations

import numpy as np

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Returns the words of Philox4x32-10 (Salmon et al., SC 2011): uint32 [..., 4] of counters
    [..., 4]."""
    c = [x.astype(np.uint64) for x in np.moveaxis(np.asarray(counter), -1, 0)]
    k = [np.uint64(x) for x in key]
    for _ in range(_ROUNDS):
        even, odd = (np.uint64(m) * x for m, x in zip(_MULTIPLIERS, (c[0], c[2])))
        c = [(odd >> _HALF) ^ c[1] ^ k[0], odd & _LOW, (even >> _HALF) ^ c[3] ^ k[1], even & _LOW]
        k = [(x + np.uint64(step)) & _LOW for x, step in zip(k, _KEY_STEPS)]
    return np.stack(c, axis=-1).astype(np.uint32)


def threshold(dropout_p: float) -> int:
    """Returns the number of 16 bits below which a weight is dropped."""
    return int(np.floor(65536 * float(np.float32(dropout_p)) + 0.5))


def bits(
    rng_state: tuple[int, int], b: int, n_heads: int, head: int, len_q: int, len_k: int
) -> np.ndarray:
    """Returns the 16 bits of each query and key of a head of sequence b: [len_q, len_k]."""
    seed, offset = (int(x) % 2**64 for x in rng_state)
    i, j = np.arange(len_q)[:, None], np.arange(len_k)[None, :]
    lane = i % 8 * 4 + j % 8 // 2
    words = philox4x32(
        np.stack(
            np.broadcast_arrays(
                i // 16 + (lane << 27),
                j // 16 + (((offset >> 32) % 32) << 27),
                b * n_heads + head,
                offset % 2**32,
            ),
            axis=-1,
        ),
        (seed % 2**32, seed >> 32),
    )
    word = np.broadcast_to(i % 16 // 8 + j % 16 // 8 * 2, (len_q, len_k))
    own = np.take_along_axis(words, word[..., None], axis=-1)[..., 0]
    return np.where(j % 2 == 1, own >> 16, own & 0xFFFF).astype(np.uint16)


def kept_of_head(
    dropout_p: float,
    rng_state: tuple[int, int],
    b: int,
    n_heads: int,
    head: int,
    len_q: int,
    len_k: int,
) -> np.ndarray:
    """Returns bool [len_q, len_k]: which weights of a head of sequence b stay."""
    return bits(rng_state, b, n_heads, head, len_q, len_k) >= threshold(dropout_p)


def kept(
    dropout_p: float,
    rng_state: tuple[int, int],
    batch: int,
    n_heads: int,
    seqlen_q: int,
    seqlen_k: int,
) -> np.ndarray:
    """Returns bool [batch, n_heads, seqlen_q, seqlen_k]: which weights stay."""
    of_heads = [
        kept_of_head(dropout_p, rng_state, b, n_heads, head, seqlen_q, seqlen_k)
        for b in range(batch)
        for head in range(n_heads)
    ]
    return np.array(of_heads, bool).reshape(batch, n_heads, seqlen_q, seqlen_k)


def factors(
    dropout_p: float,
    rng_state: tuple[int, int] | None,
    b: int,
    n_heads: int,
    head: int,
    len_q: int,
    len_k: int,
) -> np.ndarray | float:
    """Returns what the weights of a head are multiplied by: 0 or 1 / (1 - dropout_p); 1 where
    nothing is dropped."""
    if rng_state is None or threshold(dropout_p) == 0:
        return 1.0
    stay = kept_of_head(dropout_p, rng_state, b, n_heads, head, len_q, len_k)
    return stay / float(1 - np.float32(dropout_p))
