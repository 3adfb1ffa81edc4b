"""Streams, graphs and threads: the call is enqueued on the caller's stream and nowhere else, can be
captured after flash_prepare(), and gives the same bits every time."""

from __future__ import annotations

import threading
from dataclasses import replace

import flashattn
import pytest
import torch
from busy_streams import run_on_a_busy_stream
from device_memory import download, lengths
from flashattn import Arch, Feature
from flashattn._library import check as check_status
from flashattn._library import library
from flashattn._problem import Problem
from gpu_problems import (
    configs_for,
    contiguous_rows,
    device_inputs,
    device_options,
    heads_of,
    run,
    same_bits,
    types_of,
)
from problems import AttentionProblem

SLEEP = 20_000_000  # clock cycles: usually longer than it takes to enqueue what follows

P = AttentionProblem(2, 200, 300, 6, 2, 128, "bfloat16", causal=True)
PROBLEMS = {
    "prefill": P,
    "window": replace(P, window_size=(50, 0), d_head=64, dtype="float16"),
    "ragged": AttentionProblem(
        3, 120, 700, 4, 2, 64, "float16",
        cu_seqlens_q=(0, 120, 121, 130), cu_seqlens_k=(0, 130, 830, 900),
    ),
    "few_queries": AttentionProblem(2, 2, 3000, 8, 2, 256, "bfloat16"),
}  # fmt: skip
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


@every_problem
def test_repeats_are_bit_identical(p: AttentionProblem) -> None:
    for config in configs_for(p):
        first = run(p, config=config)
        assert all(same_bits(first, run(p, config=config)) for _ in range(4))


def test_call_waits_for_its_stream_and_for_no_other() -> None:
    """The inputs arrive late on a side stream. A kernel on another stream would miss them."""
    late = device_inputs(P)
    expected = flashattn.flash_attn_func(*late, causal=True)
    early = [torch.zeros_like(x) for x in late]

    def copy_and_call() -> torch.Tensor:
        for x, y in zip(early, late):
            x.copy_(y)
        return flashattn.flash_attn_func(*early, causal=True)

    assert torch.equal(run_on_a_busy_stream(copy_and_call), expected)


def test_combine_runs_on_the_callers_stream() -> None:
    late = torch.randn(3, 2, 40, 4, 64, device="cuda")
    lse = torch.randn(3, 2, 4, 40, device="cuda")
    expected = flashattn.flash_combine(late, lse)
    stream, early = torch.cuda.Stream(), torch.zeros_like(late)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
        early.copy_(late)
        o = flashattn.flash_combine(early, lse)
    stream.synchronize()
    assert torch.equal(o, expected)


def test_two_streams_at_once() -> None:
    problems = [P, replace(P, seed=1)]
    expected = [run(p) for p in problems]
    tensors = [device_inputs(p) for p in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    results: list[list] = [[], []]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i].append(
                    flashattn.flash_attn_func(*tensors[i], causal=True, return_lse=True)
                )
    torch.cuda.synchronize()
    for wanted, own in zip(expected, results):
        assert all(same_bits([download(x) for x in result], wanted) for result in own)


def test_threads_at_once() -> None:
    problems = [replace(p, seed=seed) for p in PROBLEMS.values() for seed in (1, 2)]
    expected = [run(p) for p in problems]
    failures = []

    def work(p: AttentionProblem, wanted: tuple) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                if not same_bits(run(p), wanted):
                    failures.append(p)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(problems, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- Graphs ----


@pytest.mark.parametrize("row", contiguous_rows(), ids=lambda r: r.name)
def test_graph_replays_with_other_values_and_lengths(row: flashattn.Kernel) -> None:
    """Lengths change where the row can be told them."""
    config = row.config
    p = AttentionProblem(2, 90, 260, 4, 2, **heads_of(config), **types_of(config))
    if config.arch == Arch.SM80_DECODE:
        p = replace(p, seqlen_q=2)
    if config.features & Feature.VARLEN:
        p = replace(p, seqused_k=(260, 100))
    tensors, options = device_inputs(p), device_options(p)
    _prepare(tensors, options, config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flashattn.flash_attn_varlen_func(
            *tensors, config=config, return_lse=True, **options
        )
    for seed, used in enumerate(((260, 100), (1, 64), (0, 259))):
        own = replace(p, seqused_k=p.seqused_k and used, seed=seed)
        for x, y in zip(tensors, device_inputs(own)):
            x.copy_(y)
        if p.seqused_k:
            options["seqused_k"].copy_(lengths(used))
        graph.replay()
        assert same_bits([download(x) for x in captured], run(own, config=config))


def _prepare(tensors: list, options: dict, config: flashattn.Config) -> None:
    problem = Problem(*tensors, options)
    check_status(library().flash_prepare(problem.args, flashattn.config.row(config)))


def test_graph_of_a_combine() -> None:
    o, lse = torch.randn(3, 2, 40, 4, 64, device="cuda"), torch.randn(3, 2, 4, 40, device="cuda")
    flashattn.flash_combine(o, lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flashattn.flash_combine(o, lse)
    o.normal_()
    lse.normal_()
    graph.replay()
    assert torch.equal(captured, flashattn.flash_combine(o, lse))
