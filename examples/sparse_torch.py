"""Sparse attention of DeepSeek-V3.2 with torch tensors, on a GPU if there is one: for each query an
indexer has chosen tokens of the cache, with -1 wherever it chose none. Each query is a sequence of
its own, whose tokens are pages of one token, and a place of -1 is a hole of the page table.

python examples/sparse_torch.py
"""

import time

import flashattn
import torch
from flashattn.torch_ops import flash_attn_func

uses_gpu = torch.cuda.is_available() and bool(flashattn.cuda_devices())
device = "cuda" if uses_gpu else "cpu"
N_TOKENS, N_QUERIES, N_HEADS, N_CHOSEN = (
    (1 << 16, 512, 128, 2048) if uses_gpu else (4096, 4, 16, 256)
)
N_COLUMNS, N_VALUES = 576, 512  # of K, of which V is the first
torch.manual_seed(0)

cache = torch.randn(N_TOKENS, 1, 1, N_COLUMNS, device=device).bfloat16()  # pages of one token
q = torch.randn(N_QUERIES, 1, N_HEADS, N_COLUMNS, device=device).bfloat16()
chosen = torch.randint(N_TOKENS, (N_QUERIES, N_CHOSEN), dtype=torch.int32, device=device)
chosen[torch.rand(chosen.shape, device=device) < 0.3] = -1
chosen[0] = -1  # nothing at all: O is 0
places = torch.full((N_QUERIES,), N_CHOSEN, dtype=torch.int32, device=device)


def attend() -> torch.Tensor:
    return flash_attn_func(
        q, cache, cache[..., :N_VALUES], softmax_scale=192**-0.5,
        page_table=chosen, page_holes=True, seqused_k=places,
    )  # fmt: skip


o = attend()
begin = time.perf_counter()
for _ in range(3):
    attend()
if uses_gpu:
    torch.cuda.synchronize()
seconds = (time.perf_counter() - begin) / 3
print(f"{N_QUERIES} queries of {N_HEADS} heads on {device}: {1e3 * seconds:.2f} ms")

assert not o[0].any()
k = cache[chosen[1][chosen[1] >= 0], 0, 0].float()
weights = torch.softmax(q[1, 0].float() @ k.T * 192**-0.5, dim=-1)
deviation = (o[1, 0].float() - weights @ k[:, :N_VALUES]).abs().max().item()
print(f"O differs from attention to the chosen tokens alone by {deviation:.1e} at most")
assert deviation < 2e-2
