"""A shifted diagonal, diagonal_offset: parts of a sequence, and windows beside the query."""

from __future__ import annotations

import functools
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from bias_cases import BiasCase
from direct import ForwardCall, assert_refused
from flashattn import _abi, oracle
from hypothesis import given
from hypothesis import strategies as st
from problems import AttentionProblem, check, check_every_kernel, configs_for, make_inputs, run
from strategies import attention_problems, chunks, random_problems

PREFILL = AttentionProblem(2, 150, 190, 4, 2, 64, "bfloat16", causal=True)
DECODE = AttentionProblem(1, 2, 5000, 8, 2, 64, "bfloat16", causal=True)
FAR = 2**31 - 1
every_type = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])


@every_type
@pytest.mark.parametrize("offset", [-500, -190, -189, -64, -1, 1, 64, 149, 150, 189, 190, 500])
def test_prefill(offset: int, dtype: str) -> None:
    p = replace(PREFILL, diagonal_offset=offset, dtype=dtype)
    check_every_kernel(p)
    check_every_kernel(replace(p, causal=False, window_size=(70, 3)))


@every_type
@pytest.mark.parametrize("offset", [-4999, -4000, -2600, -1, 1, 60, 4998, 6000])
def test_decode(offset: int, dtype: str) -> None:
    """Keys are split among tasks, of which some have nothing that a query sees."""
    p = replace(DECODE, diagonal_offset=offset, dtype=dtype)
    check_every_kernel(p)
    check_every_kernel(replace(p, seqlen_q=9, causal=False, window_size=(2100, 50)))
    check_every_kernel(replace(p, seqlen_q=30, causal=False, window_size=(1000, -1)))


@pytest.mark.parametrize("offset", [-180, -97, -3, 3, 40, 97, 250])
@pytest.mark.parametrize("window", [(0, 0), (20, -1), (-1, 5), (100, 3), (-1, -1)], ids=str)
@pytest.mark.parametrize("chunk", [16, 50, 190, 2**40])
def test_chunks_and_windows_count_from_the_shifted_diagonal(
    chunk: int, window: tuple[int, int], offset: int
) -> None:
    p = replace(PREFILL, attention_chunk=chunk, window_size=window, diagonal_offset=offset)
    check_every_kernel(replace(p, causal=False))
    check_every_kernel(replace(p, batch=1, seqlen_q=3))


@every_type
@pytest.mark.parametrize("offset", [-300, -77, 5, 200, 1000])
def test_distances_of_alibi_count_from_there_and_columns_of_masks_do_not(
    offset: int, dtype: str
) -> None:
    for bias in (BiasCase(slopes=1), BiasCase(slopes=2, kind="bits"), BiasCase(kind="float32")):
        p = replace(PREFILL, diagonal_offset=offset, dtype=dtype, bias=bias, causal=False)
        check_every_kernel(p)
        check_every_kernel(replace(p, batch=1, seqlen_q=2, seqlen_k=3000, causal=True))


@pytest.mark.parametrize("offset", [-130, -10, 10, 130])
def test_sequences_of_a_batch_are_shifted_by_the_same_number(offset: int) -> None:
    p = AttentionProblem(
        4, 130, 400, 6, 2, 64, "bfloat16", causal=True, cu_seqlens_q=(0, 1, 1, 131, 135),
        seqused_k=(400, 77, 131, 2), diagonal_offset=offset,
    )  # fmt: skip
    check_every_kernel(p)
    check_every_kernel(replace(p, seqused_q=(1, 0, 70, 3), leftpad_k=(0, 3, 100, 1)))
    check_every_kernel(replace(p, causal=False, window_size=(30, 30), sinks=(0.5,) * 6))


@random_problems
@given(
    attention_problems(),
    st.one_of(st.integers(-8, 8), st.integers(-300, 300), st.sampled_from([-(10**9), 10**9])),
    chunks(),
    st.data(),
)
def test_random_offsets_agree_with_the_oracle(
    p: AttentionProblem, offset: int, chunk: int, data: st.DataObject
) -> None:
    p = replace(p, diagonal_offset=offset, attention_chunk=chunk)
    if abs(offset) > 1000 and p.bias is not None:  # float32 has not all distances
        p = replace(p, bias=replace(p.bias, slopes=0))
    config = data.draw(st.sampled_from([None, *configs_for(p)]), label="config")
    check(p, config=config, roundings=4)


# ---- What it means ----


def test_a_shifted_diagonal_is_that_of_more_queries_or_keys() -> None:
    """Queries that stand further on are the first ones of more queries; with the last keys left out
    they are the last ones over fewer."""
    q, k, v = make_inputs(replace(PREFILL, dtype="float32"))
    fewer = {"k": k[:, :100], "v": v[:, :100]}
    for config in configs_for(replace(PREFILL, dtype="float32")):
        call = functools.partial(flashattn.flash_attn_func, causal=True, config=config)
        whole, back = call(q, k, v), call(q, k, v, diagonal_offset=-90)
        np.testing.assert_allclose(call(q[:, :60], k, v, diagonal_offset=-90), whole[:, :60])
        np.testing.assert_allclose(call(q, **fewer), back, atol=1e-6)


def test_a_window_beside_the_query() -> None:
    """Keys p - 5 ... p - 2 of a query at key p."""
    p = AttentionProblem(1, 40, 40, 2, 1, 32, diagonal_offset=-2, window_size=(3, 0))
    i, j = np.arange(40)[:, None], np.arange(40)[None, :]
    sees = (j >= i - 5) & (j <= i - 2)
    q, k, v = make_inputs(p)
    for config in configs_for(p):
        o, lse = check(p, config=config)
        masked = flashattn.flash_attn_func(q, k, v, attn_mask=sees, config=config)
        np.testing.assert_allclose(o, masked, atol=1e-5)
        assert (o[:, :2] == 0).all() and (lse[..., :2] == -np.inf).all()
        assert np.isfinite(lse[..., 2:]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offset", [-FAR + 150, -1000, 1000, FAR - 190])
def test_queries_beyond_all_keys(offset: int, dtype: str) -> None:
    """With a window they see none, and causal order hides all from those before."""
    p = replace(PREFILL, dtype=dtype, diagonal_offset=offset)
    for config in configs_for(p):
        o, lse = run(replace(p, causal=False, window_size=(20, 30)), config=config)
        assert (o == 0).all() and (lse == -np.inf).all(), config
        o, lse = run(p, config=config)
        if offset < 0:
            assert (o == 0).all() and (lse == -np.inf).all(), config
        else:
            full = run(replace(p, causal=False, diagonal_offset=0), config=config)
            assert o.tobytes() == full[0].tobytes() and lse.tobytes() == full[1].tobytes()


@pytest.mark.parametrize("offset", [-60, 60])
def test_what_no_query_sees_does_not_matter(offset: int) -> None:
    for seqlen_q in (1, 4, 150):
        p = replace(PREFILL, seqlen_q=seqlen_q, window_size=(30, -1), diagonal_offset=offset)
        sees = oracle.Mask(True, 30, -1, 0, offset).visible(seqlen_q, 190).any(axis=0)
        for config in configs_for(p):
            q, k, v = make_inputs(p)
            clean = run(p, [q, k, v], config)
            k[:, ~sees], v[:, ~sees] = np.nan, np.nan
            for found, expected in zip(run(p, [q, k, v], config), clean):
                assert found.tobytes() == expected.tobytes(), config


@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_and_neighbours_do_not_change_bits(n_threads: int) -> None:
    p = replace(DECODE, batch=2, seqlen_q=6, diagonal_offset=-1700, dtype="float32")
    q, k, v = make_inputs(p)
    threads = flashattn.num_threads()
    for config in configs_for(p):
        options = {"causal": True, "diagonal_offset": -1700, "config": config}
        both = flashattn.flash_attn_func(q, k, v, **options)
        try:
            flashattn.set_num_threads(n_threads)
            alone = flashattn.flash_attn_func(q[1:], k[1:], v[1:], **options)
        finally:
            flashattn.set_num_threads(threads)
        assert alone.tobytes() == both[1:].tobytes()


def test_an_offset_of_0_changes_no_bit() -> None:
    q, k, v = make_inputs(PREFILL)
    plain = flashattn.flash_attn_func(q, k, v, causal=True)
    assert (
        flashattn.flash_attn_func(q, k, v, causal=True, diagonal_offset=0).tobytes()
        == plain.tobytes()
    )


# ---- A sequence that devices share ----


def _zigzag(rank: int, n_ranks: int, length: int) -> list[slice]:
    """Returns the two parts of a sequence that a rank has: one from each end."""
    part = length // (2 * n_ranks)
    return [slice(i * part, (i + 1) * part) for i in (rank, 2 * n_ranks - 1 - rank)]


@pytest.mark.parametrize("window", [(-1, -1), (150, -1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_in_zigzag_are_the_whole(dtype: str, window: tuple[int, int]) -> None:
    """Each part of the queries meets each part of the keys in a call of its own."""
    p = AttentionProblem(2, 640, 640, 4, 2, 64, dtype, causal=True, window_size=window)
    q, k, v = make_inputs(p)
    expected, expected_lse = oracle.attention(q, k, v, causal=True, window_size=window)
    found, found_lse = np.zeros_like(expected), np.zeros_like(expected_lse)
    n_ranks = 4
    parts = [part for rank in range(n_ranks) for part in _zigzag(rank, n_ranks, 640)]
    for config in configs_for(p):
        for queries in parts:
            partial = [
                flashattn.flash_attn_func(
                    q[:, queries], k[:, keys], v[:, keys], causal=True, window_size=window,
                    diagonal_offset=queries.stop - keys.stop, return_lse=True,
                    out_dtype="float32", config=config,
                )
                for keys in parts
            ]  # fmt: skip
            o, lse = (np.stack(x) for x in zip(*partial))
            merged = flashattn.flash_combine(o, lse, return_lse=True)
            found[:, queries], found_lse[..., queries] = merged
        tolerance = 2e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(found_lse, expected_lse, rtol=1e-5, atol=1e-4)


# ---- Refusals ----


@pytest.mark.parametrize("offset", [FAR, FAR - 6, -FAR, -FAR + 3, 2**62, -(2**63)])
def test_places_beyond_31_bits_are_refused(offset: int) -> None:
    call = ForwardCall()
    call.args.diagonal_offset = offset
    assert_refused(
        call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, [f"diagonal_offset is {offset}: of "]
    )
    call.assert_untouched()


def test_other_types_are_refused() -> None:
    q = np.zeros((1, 2, 1, 8), np.float32)
    for offset in (1.5, "8", None):
        with pytest.raises(ValueError, match="diagonal_offset is"):
            flashattn.flash_attn_func(q, q, q, diagonal_offset=offset)
    with pytest.raises(ValueError, match="64 bits"):
        flashattn.flash_attn_func(q, q, q, diagonal_offset=2**63)


# ---- torch ----


def test_torch_has_it_in_each_of_its_ways() -> None:
    torch = pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import extension

    q, k, v = (torch.from_numpy(x) for x in make_inputs(replace(PREFILL, dtype="float32")))
    options = {"causal": True, "diagonal_offset": -33}
    expected = flashattn.flash_attn_func(q.numpy(), k.numpy(), v.numpy(), **options)
    for found in (
        torch_ops.flash_attn_func(q, k, v, **options),
        torch.ops.flashattn.fwd(q, k, v, **options),
        flashattn.flash_attn_func(q, k, v, **options),
    ):
        assert found.numpy().tobytes() == expected.tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extension, "forward", None)
        found = torch_ops.flash_attn_func(q, k, v, **options)
    assert found.numpy().tobytes() == expected.tobytes()
