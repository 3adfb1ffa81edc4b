"""The same inputs give the same bits: again, with other threads, and in other batches."""

import threading
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from problems import AttentionProblem, configs_for, make_inputs, run, workspace_size

PROBLEMS = {
    "prefill": AttentionProblem(2, 200, 300, 6, 2, 64, "bfloat16", causal=True),
    "split": AttentionProblem(2, 2, 5000, 4, 2, 64, "float32"),
    "ragged": AttentionProblem(
        3,
        120,
        2000,
        4,
        2,
        64,
        "float16",
        cu_seqlens_q=(0, 120, 121, 130),
        cu_seqlens_k=(0, 130, 2130, 2200),
    ),
    # Heads lie side by side, and are computed together where threads are few; some groups have
    # fewer.
    "heads together": AttentionProblem(1, 2, 1500, 22, 11, 256, "bfloat16", causal=True),
    # The same with heads of more rows, those of several queries.
    "rows together": AttentionProblem(1, 4, 2500, 20, 5, 64, "bfloat16", causal=True),
    # Heads lie side by side, and a worker has several whole heads at once if there is memory.
    "heads by turns": AttentionProblem(2, 300, 300, 7, 7, 64, "bfloat16", causal=True),
    # There are fewer blocks of rows than threads, which then take parts of them.
    "few blocks": AttentionProblem(1, 300, 300, 1, 1, 64, "bfloat16", causal=True),
    # The keys do not fit a level 2 cache, so that a task has several blocks of rows.
    "large tasks": AttentionProblem(1, 520, 9300, 32, 8, 8, "bfloat16", window_size=(200, 0)),
    # The keys of several blocks of rows are split.
    "split blocks": AttentionProblem(1, 60, 6000, 8, 4, 32, "bfloat16", causal=True),
    # There are more heads than slots of packed keys, with heads between them that pack none.
    "many heads": AttentionProblem(
        5,
        300,
        1500,
        6,
        3,
        32,
        "bfloat16",
        cu_seqlens_q=(0, 300, 301, 302, 602, 902),
        cu_seqlens_k=(0, 300, 1800, 3300, 3600, 3900),
        causal=True,
    ),
}
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _same_bits(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b))


@every_problem
def test_repeats(p: AttentionProblem) -> None:
    for config in configs_for(p):
        first = run(p, config=config)
        assert all(_same_bits(first, run(p, config=config)) for _ in range(2))


@every_problem
def test_thread_counts(p: AttentionProblem) -> None:
    for config in configs_for(p):
        results = []
        for n_threads in (1, 2, 3, 7):
            flashattn.set_num_threads(n_threads)
            assert flashattn.num_threads() == n_threads
            results.append(run(p, config=config))
        assert all(_same_bits(results[0], result) for result in results[1:])


@every_problem
def test_workspace_sizes(p: AttentionProblem) -> None:
    """The sizes go from what one thread asks for to what four do."""
    for config in configs_for(p):
        flashattn.set_num_threads(1)
        least = workspace_size(p, config)
        flashattn.set_num_threads(4)
        most = workspace_size(p, config)
        results = [
            run(p, config=config, workspace_bytes=least + i * (most - least) // 3) for i in range(4)
        ]
        assert all(_same_bits(results[0], result) for result in results[1:])


@every_problem
def test_order_of_heads_in_memory(p: AttentionProblem) -> None:
    """Tokens have all heads side by side, or heads all their tokens."""
    q, k, v = make_inputs(p)
    by_heads = [np.ascontiguousarray(x.swapaxes(-3, -2)).swapaxes(-3, -2) for x in (k, v)]
    for config in configs_for(p):
        assert _same_bits(run(p, [q, k, v], config), run(p, [q, *by_heads], config))


@pytest.mark.parametrize("seqlens", [(100, 150), (1, 3000)], ids=["prefill", "split"])
def test_neighbours_of_a_padded_batch(seqlens: tuple[int, int]) -> None:
    p = AttentionProblem(3, *seqlens, 4, 2, 64, causal=True)
    q, k, v = make_inputs(p)
    for config in configs_for(p):
        o, lse = run(p, [q, k, v], config)
        for b in range(3):
            one = slice(b, b + 1)
            alone = run(replace(p, batch=1), [q[one], k[one], v[one]], config)
            assert _same_bits(alone, (o[one], lse[one]))


@pytest.mark.parametrize("lengths", [(40, 90, 7, 200), (1, 3000)], ids=["prefill", "split"])
def test_neighbours_of_a_ragged_batch(lengths: tuple[int, ...]) -> None:
    """A sequence is alone, and beside longer and shorter ones."""
    keys, queries = lengths, tuple(min(n, 60) if n < 1000 else 2 for n in lengths)
    p = _ragged(queries, keys)
    q, k, v = make_inputs(p)
    for config in configs_for(p):
        o, lse = run(p, [q, k, v], config)
        for b in range(len(lengths)):
            rows = slice(p.cu_seqlens_q[b], p.cu_seqlens_q[b + 1])
            columns = slice(p.cu_seqlens_k[b], p.cu_seqlens_k[b + 1])
            inputs = [q[rows], k[columns], v[columns]]
            alone = run(_ragged(queries[b : b + 1], keys[b : b + 1]), inputs, config)
            assert _same_bits(alone, (o[rows], lse[:, rows]))


def _ragged(queries: tuple[int, ...], keys: tuple[int, ...]) -> AttentionProblem:
    return AttentionProblem(
        batch=len(queries),
        seqlen_q=max(queries),
        seqlen_k=max(keys),
        n_heads=4,
        n_heads_kv=2,
        d_head=64,
        cu_seqlens_q=tuple(int(n) for n in np.cumsum((0, *queries))),
        cu_seqlens_k=tuple(int(n) for n in np.cumsum((0, *keys))),
        causal=True,
    )


def test_calls_from_several_threads_at_once() -> None:
    problems = [replace(p, seed=seed) for p in PROBLEMS.values() for seed in (1, 2)]
    expected = [run(p) for p in problems]
    failures = []

    def work(p: AttentionProblem, wanted: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(3):
            if not _same_bits(run(p), wanted):
                failures.append(p)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(problems, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
