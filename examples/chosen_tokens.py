"""Decodes over tokens that an indexer chose for each query, as in DeepSeek-V3.2: a row of 2,048
places, where -1 says that nothing was chosen. The cache has pages of one token, and such a place is
a hole of the page table. The same choice without holes, one token behind the other, gives the same.

python examples/chosen_tokens.py
"""

import time

import flashattn
import numpy as np
from flashattn import latent

N_TOKENS, N_QUERIES, N_HEADS, N_CHOSEN = 32768, 4, 128, 2048
rng = np.random.default_rng(0)
cache = latent.encode(rng.standard_normal((N_TOKENS, 1, 1, latent.COLUMNS), np.float32))
q = rng.standard_normal((N_QUERIES, 1, N_HEADS, latent.COLUMNS), np.float32)
lengths = np.full(N_QUERIES, N_CHOSEN, np.int32)
all_chosen = np.stack([rng.permutation(N_TOKENS)[:N_CHOSEN] for _ in range(N_QUERIES)])
all_chosen = all_chosen.astype(np.int32)
with_holes = np.where(rng.random(all_chosen.shape) < 0.5, -1, all_chosen)


def decode(table: np.ndarray, counts: np.ndarray, **flags: bool) -> np.ndarray:
    return flashattn.flash_attn_func(
        q, cache, cache, kv_dtype="latent_e4m3", softmax_scale=192**-0.5,
        page_table=table, seqused_k=counts, **flags,
    )  # fmt: skip


def compacted(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows without their holes, and how many tokens each has."""
    tokens = [row[row >= 0] for row in table]
    counts = np.array([len(row) for row in tokens], np.int32)
    padded = np.full(table.shape, -1, np.int32)  # what lies behind the tokens is not looked at
    for row, chosen in zip(padded, tokens):
        row[: len(chosen)] = chosen
    return padded, counts


CALLS = {
    "2,048 tokens": lambda: decode(all_chosen, lengths),
    "2,048 tokens, page_holes": lambda: decode(all_chosen, lengths, page_holes=True),
    "half of them holes": lambda: decode(with_holes, lengths, page_holes=True),
    "compacted, with the time of that": lambda: decode(*compacted(with_holes)),
}
np.testing.assert_allclose(
    CALLS["half of them holes"](), CALLS["compacted, with the time of that"](), atol=1e-4
)
times: dict[str, list[float]] = {name: [] for name in CALLS}
for _ in range(9):  # in turns
    for name, call in CALLS.items():
        begin = time.perf_counter()
        call()
        times[name].append(time.perf_counter() - begin)
for name, of_call in times.items():
    print(f"{name}: {1e3 * sorted(of_call)[4]:.2f} ms")
