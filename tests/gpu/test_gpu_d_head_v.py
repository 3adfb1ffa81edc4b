"""V and O whose head dimension is not that of Q and K: on every row that serves such a problem, and
as the library selects.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from device_memory import lengths
from flashattn import Arch, DType
from gpu_problems import (
    check,
    check_every_row,
    check_in_pages,
    configs_for,
    configs_for_pages,
    device_inputs,
    device_pages,
    heads_of,
    rows,
    run,
    same_bits,
)
from memory import E4M3
from paging import PagedProblem
from problems import AttentionProblem

# d_head and d_head_v. Rows of the last ones are not of whole chunks of 16 bytes.
ALIGNED = [(192, 128), (128, 64), (64, 128), (128, 256), (256, 32), (72, 40), (16, 248)]
UNALIGNED = [(100, 36), (64, 33), (36, 100), (64, 1), (1, 64)]
DTYPES = ("float16", "bfloat16")

PREFILL = AttentionProblem(2, 150, 300, 4, 2, causal=True, dtype="bfloat16")
DECODE = AttentionProblem(20, 2, 700, 8, 2, causal=True, dtype="bfloat16")
LONG = AttentionProblem(1, 1, 9000, 32, 4, dtype="bfloat16")  # partial results
PROBLEMS = {"prefill": PREFILL, "decode": DECODE, "long": LONG}
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _with_dims(p: AttentionProblem, dims: tuple[int, int], **changes: object) -> AttentionProblem:
    return replace(p, d_head=dims[0], d_head_v=dims[1], **changes)


@pytest.mark.parametrize("o_dtype", [None, "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", ALIGNED + UNALIGNED, ids=str)
def test_prefill_on_every_row(dims: tuple[int, int], dtype: str, o_dtype: str | None) -> None:
    check_every_row(_with_dims(PREFILL, dims, dtype=dtype, o_dtype=o_dtype))


@pytest.mark.parametrize("p", [DECODE, LONG], ids=["decode", "long"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", ALIGNED, ids=str)
def test_few_queries_on_every_decode_row(
    dims: tuple[int, int], dtype: str, p: AttentionProblem
) -> None:
    p = _with_dims(p, dims, dtype=dtype)
    configs = [c for c in configs_for(p) if c.arch == Arch.SM80_DECODE]
    assert configs
    for config in configs:
        check(p, config)


@every_problem
@pytest.mark.parametrize("dims", ALIGNED, ids=str)
def test_what_is_selected(dims: tuple[int, int], p: AttentionProblem) -> None:
    check(_with_dims(p, dims))


@every_problem
@pytest.mark.parametrize("dims", [(128, 64), (64, 128), (192, 128), (32, 256)], ids=str)
def test_keys_of_e4m3(dims: tuple[int, int], p: AttentionProblem) -> None:
    p = _with_dims(p, dims, dtype=E4M3, q_dtype="bfloat16", k_descale=0.5, v_descale=1.25)
    for config in (None, *configs_for(p)):
        check(p, config)


@pytest.mark.parametrize("page_size", [1, 16, 19])
@every_problem
@pytest.mark.parametrize("dims", [(192, 128), (64, 128), (128, 40)], ids=str)
def test_keys_in_pages(dims: tuple[int, int], p: AttentionProblem, page_size: int) -> None:
    q = PagedProblem(_with_dims(p, dims), page_size)
    for config in (None, *configs_for_pages(q)):
        check_in_pages(q, config)


@pytest.mark.parametrize("dims", [(192, 128), (64, 128)], ids=str)
def test_bits_are_those_of_v_padded_with_zeros(dims: tuple[int, int]) -> None:
    """Rows compute columns of V apart, so that those of zeros change nothing. Everything is padded
    to the row's own head dimensions."""
    for p in PROBLEMS.values():
        p = _with_dims(p, dims)
        tensors = device_inputs(p)
        for config in configs_for(p):
            columns = config.d_head_v or config.d_head
            wide = [
                torch.nn.functional.pad(x, (0, most - x.shape[-1]))
                for x, most in zip(tensors, (config.d_head, config.d_head, columns))
            ]
            same = replace(p, **heads_of(config), softmax_scale=dims[0] ** -0.5)
            o, lse = run(p, tensors, config)
            wide_o, wide_lse = run(same, wide, config)
            assert same_bits((o, lse), (np.ascontiguousarray(wide_o[..., : dims[1]]), wide_lse))


@every_problem
def test_v_is_a_view_of_k(p: AttentionProblem) -> None:
    """The cache of MLA holds V in the first elements of each row of K."""
    p = _with_dims(p, (192, 128))
    q, k, _ = device_inputs(p)
    apart = [q, k, k[..., :128].contiguous()]
    for config in configs_for(p):
        assert same_bits(run(p, [q, k, k[..., :128]], config), run(p, apart, config))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_poison_in_a_value_reaches_only_the_rows_that_see_it(poison: float) -> None:
    p = _with_dims(PREFILL, (128, 64))
    q, k, v = device_inputs(p)
    v[:, 200, :, 63] = poison  # seen by queries 50 and on
    for config in configs_for(p):
        o, _ = run(p, [q, k, v], config)
        o = o.astype(np.float32)
        assert np.isfinite(o[..., :63]).all() and np.isfinite(o[:, :50]).all()
        assert not np.isfinite(o[:, 50:, :, 63]).any()


def test_a_ragged_batch_of_chunks_and_single_queries() -> None:
    queries, used = (1, 150, 1, 64, 2), (900, 700, 33, 64, 0)
    ends = (0, *np.cumsum(queries).tolist())
    p = AttentionProblem(
        5, 150, 900, 8, 2, 192, "bfloat16", causal=True, cu_seqlens_q=ends, seqused_k=used,
        d_head_v=128,
    )  # fmt: skip
    check(p)
    check_in_pages(PagedProblem(p, 16))


def test_a_graph_replays_with_other_lengths() -> None:
    p = _with_dims(replace(DECODE, batch=4, seqused_k=(700, 3, 65, 600)), (192, 128))
    pages, where = device_pages(PagedProblem(p, 16))
    options = {"causal": True, **where}
    o = torch.empty(p.o_shape, dtype=torch.bfloat16, device="cuda")
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    options.update(out=o, workspace=workspace)
    flashattn.flash_attn_func(*pages, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashattn.flash_attn_func(*pages, **options)
    where["seqused_k"].copy_(lengths((600, 0, 64, 550)))
    graph.replay()
    replayed = o.clone()
    flashattn.flash_attn_func(*pages, **options)
    assert torch.equal(o, replayed)


def test_larger_dimensions_are_refused_by_name() -> None:
    for dims in ((64, 520), (520, 64), (576, 512)):
        message = f"d_head {dims[0]}, d_head_v {dims[1]}"
        with pytest.raises(NotImplementedError, match=message):
            run(_with_dims(PREFILL, dims))
    of_64 = next(
        row.config
        for row in rows()
        if (row.config.arch, row.config.dtype, row.config.d_head) == (Arch.SM80, DType.BF16, 64)
    )
    with pytest.raises(NotImplementedError, match=r"does not serve this problem: d_head_v\."):
        run(_with_dims(PREFILL, (64, 128)), config=of_64)
