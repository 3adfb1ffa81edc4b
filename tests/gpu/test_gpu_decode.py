"""Few queries over many keys, which SM80_DECODE cuts into pieces: streams, the size of the
workspace between the two kernels, and the selection. test_gpu_table.py checks whether results are
right, test_gpu_caches.py that pages, batches and graphs do not change them.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import torch
from cache_families import DECODE
from device_memory import lengths
from flashattn import Arch
from flashattn._attention import workspace_size
from flashattn._problem import Problem
from gpu_problems import device_inputs, run
from problems import AttentionProblem


def test_two_streams_with_workspaces_of_their_own() -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    problems = [DECODE.problems["one long"], DECODE.batch]
    expected = [run(p) for p in problems]
    tensors = [device_inputs(p) for p in problems]
    found: list[list[torch.Tensor]] = [[], []]
    torch.cuda.synchronize()
    for _ in range(50):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                used = lengths(problems[i].seqused_k)
                found[i].append(flashattn.flash_attn_func(*tensors[i], seqused_k=used))
    torch.cuda.synchronize()
    for outputs, (o, _) in zip(found, expected):
        bits = torch.from_numpy(o.view(np.int16)).cuda()
        assert all(torch.equal(x.view(torch.int16), bits) for x in outputs)


def test_workspace_is_small_whatever_the_lengths_are() -> None:
    q = torch.empty(256, 1, 32, 128, dtype=torch.bfloat16, device="cuda")
    k = torch.empty(1, 1, 8, 128, dtype=torch.bfloat16, device="cuda").expand(256, 100_000, 8, 128)
    problem = Problem(q, k, k, {"seqused_k": lengths((0,) * 256)})
    assert 0 < workspace_size(problem.args, None) <= 3_000_000


def test_selection_says_which_problems_decode_kernels_take() -> None:
    def arch(p: AttentionProblem, **options: object) -> int:
        tensors = device_inputs(p)
        return flashattn.select_config(*tensors, **options).config.arch

    one = AttentionProblem(2, 1, 300, 8, 2, 128, "bfloat16")
    assert arch(one) == Arch.SM80_DECODE
    assert arch(replace(one, seqlen_q=8)) == Arch.SM80_DECODE
    assert arch(replace(one, seqlen_q=9)) != Arch.SM80_DECODE
    assert arch(replace(one, d_head=125)) != Arch.SM80_DECODE
