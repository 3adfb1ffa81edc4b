"""Decodes over a cache in pages with torch tensors, on a GPU if there is one, and compares the last
step with torch's own attention.

python examples/decode_torch.py
"""

import time

import flashattn
import torch
from flashattn.torch_ops import flash_attn_func

N_STEPS, PAGE_SIZE, N_HEADS, N_HEADS_KV, D_HEAD = 32, 16, 32, 8, 128
uses_gpu = torch.cuda.is_available() and bool(flashattn.cuda_devices())
device, dtype = ("cuda", torch.bfloat16) if uses_gpu else ("cpu", torch.float32)
torch.manual_seed(0)

# The pages of the sequences lie in random order in one pool: [n_pages, page_size, heads, d_head].
lengths = torch.tensor([1000, 17, 400, 333], dtype=torch.int32, device=device)
batch, pages_each = len(lengths), (int(lengths.max()) + N_STEPS) // PAGE_SIZE + 1
page_table = torch.randperm(batch * pages_each, device=device).int().view(batch, pages_each)
k_cache, v_cache = torch.randn(
    2, batch * pages_each, PAGE_SIZE, N_HEADS_KV, D_HEAD, dtype=dtype, device=device
)

begin = time.perf_counter()
for _ in range(N_STEPS):
    lengths += 1  # after K and V of the new token were written into its page
    q = torch.randn(batch, 1, N_HEADS, D_HEAD, dtype=dtype, device=device)
    o = flash_attn_func(q, k_cache, v_cache, page_table=page_table, seqused_k=lengths)
if uses_gpu:
    torch.cuda.synchronize()
seconds = time.perf_counter() - begin
print(f"{N_STEPS} steps of {batch} sequences on {device}: {1e6 * seconds / N_STEPS:.0f} us each")

for b, length in enumerate(lengths.tolist()):
    k, v = (cache[page_table[b]].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (q[b], k, v)), enable_gqa=True
    )
    deviation = (o[b] - expected.transpose(0, 1)).abs().max().item()
    print(f"{length} keys: O differs from torch's by {deviation:.1e} at most")
