"""Computes causal attention of random data with grouped heads; shows the kernel that was chosen.

python examples/attention.py
"""

import flashattn
import numpy as np

rng = np.random.default_rng(0)
q = rng.standard_normal((2, 1024, 8, 64), np.float32)  # [batch, seqlen, heads, d_head]
k = rng.standard_normal((2, 1024, 2, 64), np.float32)  # four query heads share a K/V head
v = rng.standard_normal((2, 1024, 2, 64), np.float32)

o = flashattn.flash_attn_func(q, k, v, causal=True)

# The first query sees only the first key: its output is the first value.
np.testing.assert_allclose(o[:, 0, ::4], v[:, 0], rtol=1e-6)
print("kernel", flashattn.select_config(q, k, v, causal=True).config)
print("O =", o[0, 0, 0, :4], "...")
