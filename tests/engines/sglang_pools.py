"""Prints the largest error of O over pools of SGLang that no model of test_sglang.py has: one of
e4m3, and those of layers with windows beside layers without.

SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=tests/engines:tests/engines/sglang_stand_in:bindings/python \\
    build/engines/sglang/bin/python tests/engines/sglang_pools.py MODEL
"""

from __future__ import annotations

import sys
from typing import Any

import sglang_times
import torch
from flashattn.sglang._backend import FlashAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang_times import Case, Step

WINDOW = 20  # keys before the query's own
CASES = (Case(8, 2, 32, (7, 97), (40, 97)), Case(8, 2, 32, (1, 1), (40, 97)))


def o_in_float64(
    step: Step, kv: tuple[torch.Tensor, ...], slots_of: Any, window: int | None
) -> torch.Tensor:
    """Returns O [tokens, n_heads, d_head]; kv are of float64, [slots, n_heads_kv, d_head]."""
    case, begin, found = step.case, 0, []
    for row, (n, keys) in enumerate(zip(case.queries, case.keys)):
        slots = slots_of(step.rows.req_to_token[row, :keys].long())
        q = step.q[begin : begin + n].view(n, case.n_heads, case.d_head).double()
        k, v = (x[slots].repeat_interleave(case.n_heads // case.n_heads_kv, 1) for x in kv)
        scores = torch.einsum("ihd,jhd->hij", q, k) * case.d_head**-0.5
        distance = torch.arange(keys - n, keys)[:, None] - torch.arange(keys)
        hidden = (distance < 0) | (distance > (window or keys))
        p = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        found.append(torch.einsum("hij,jhd->ihd", p, v))
        begin += n
    return torch.cat(found)


def difference(o: torch.Tensor, expected: torch.Tensor) -> float:
    return float((o.view(expected.shape).double() - expected).abs().max())


def of_e4m3(case: Case) -> float:
    step = Step(case, torch.float32, torch.float8_e4m3fn)
    step.layer.k_scale, step.layer.v_scale = torch.tensor(0.5), torch.tensor(0.25)
    k, v = (x.double() for x in step.pool.get_kv_buffer(0))
    expected = o_in_float64(step, (0.5 * k, 0.25 * v), lambda slots: slots, None)
    return difference(step.by(FlashAttnBackend)(), expected)


def of_windows(case: Case, layer_id: int) -> float:
    """Writes the step's own tokens by the backend; what was there before is 0."""
    step, total = Step(case, torch.float32), sum(case.keys)
    sizes = {"size": total, "size_swa": total, "page_size": 1, "dtype": torch.float32}
    sizes |= {"head_num": case.n_heads_kv, "head_dim": case.d_head, "device": "cpu"}
    layers = {"full_attention_layer_ids": [0], "swa_attention_layer_ids": [1]}
    step.runner.token_to_kv_pool = pool = SWAKVPool(**sizes, **layers)
    to_windowed = torch.cat([torch.tensor([0]), torch.randperm(total) + 1])
    pool.register_mapping(to_windowed)
    rows = enumerate(zip(case.queries, case.keys))
    new = torch.cat([step.rows.req_to_token[row, k - n : k].long() for row, (n, k) in rows])
    step.batch.out_cache_loc = new
    window = WINDOW if layer_id else None
    sizes_of_layer = case.n_heads, case.d_head, case.d_head**-0.5, case.n_heads_kv, layer_id
    layer = RadixAttention(*sizes_of_layer, sliding_window_size=window or -1)
    backend = FlashAttnBackend(step.runner)
    backend.init_forward_metadata(step.batch)
    kv = [torch.randn(len(new), case.n_heads_kv, case.d_head) for _ in range(2)]
    o = backend.forward(step.q, *kv, layer, step.batch)
    written = tuple(x.double() for x in pool.get_kv_buffer(layer_id))
    assert all(torch.equal(x[to_windowed[new] if layer_id else new].float(), y)
               for x, y in zip(written, kv))  # fmt: skip
    slots_of = to_windowed.__getitem__ if layer_id else lambda slots: slots
    return difference(o, o_in_float64(step, written, slots_of, window))


def main() -> None:
    sglang_times.begin(sys.argv[1])
    torch.manual_seed(0)
    for case in CASES:
        print(f"e4m3 {of_e4m3(case)}")
        for layer_id in (0, 1):
            print(f"windows-{layer_id} {of_windows(case, layer_id)}")


if __name__ == "__main__":
    main()
