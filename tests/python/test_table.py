"""The table walk: every kernel that this machine can run is compared with the oracle, on problems
that each take another path, between pages that must not be accessed; and every row is looked up.
"""

import dataclasses

import flashattn
import numpy as np
import pytest
from flashattn import latent
from memory import E4M3, LATENT, QUANT_BLOCKS, dtype_of
from problems import AttentionProblem, check, cpu_kernels, run, runnable_kernels

KERNELS = {str(kernel.config): kernel for kernel in cpu_kernels()}

PROBLEMS = {
    "one_of_all": AttentionProblem(),
    "full": AttentionProblem(2, 65, 129, 4, 2),
    "tile_edges": AttentionProblem(1, 128, 256, 2, 2, 128),
    "past_tile_edges": AttentionProblem(1, 129, 257, 2, 1, 128),
    "causal": AttentionProblem(1, 200, 200, 2, 2, causal=True),
    "no_key": AttentionProblem(2, 70, 0, 2, 1, 64),
    "causal_more_keys": AttentionProblem(1, 67, 190, 2, 1, 96, causal=True),
    "causal_more_queries": AttentionProblem(1, 150, 70, 2, 1, 64, causal=True),
    "window": AttentionProblem(1, 130, 170, 2, 1, 80, window_size=(20, 7)),
    "window_left": AttentionProblem(1, 130, 130, 2, 1, 64, window_size=(33, -1)),
    "window_right": AttentionProblem(1, 130, 130, 2, 1, 64, window_size=(-1, 9)),
    "window_causal": AttentionProblem(1, 260, 260, 1, 1, 64, causal=True, window_size=(63, -1)),
    "own_key_alone": AttentionProblem(1, 13, 61, 1, 1, 8, causal=True, window_size=(0, -1)),
    "softcap": AttentionProblem(1, 70, 70, 2, 2, 64, softcap=3.0),
    "scale": AttentionProblem(1, 70, 70, 2, 2, 64, softmax_scale=0.05),
    "seqused_k": AttentionProblem(3, 40, 100, 2, 1, 64, seqused_k=(0, 1, 77), causal=True),
    "ragged": AttentionProblem(
        3, 90, 150, 4, 2, 64, cu_seqlens_q=(0, 1, 1, 91), cu_seqlens_k=(0, 40, 60, 210)
    ),
    "ragged_queries": AttentionProblem(2, 33, 65, 2, 2, 64, cu_seqlens_q=(0, 33, 40), causal=True),
    "ragged_keys": AttentionProblem(2, 33, 80, 2, 2, 64, cu_seqlens_k=(0, 80, 83), causal=True),
    "many_heads": AttentionProblem(40, 20, 33, 32, 32, 64),  # more than are packed at a time
    "decode": AttentionProblem(2, 1, 700, 8, 2, 128),
    "split_keys": AttentionProblem(1, 1, 2500, 8, 2, 64),
    "d_head_1": AttentionProblem(1, 20, 30, 2, 1, 1),
    "d_head_37": AttentionProblem(1, 20, 30, 2, 1, 37),
    "d_head_256": AttentionProblem(1, 40, 70, 2, 1, 256),
    "d_head_520": AttentionProblem(1, 20, 30, 1, 1, 520),
    "growing": AttentionProblem(1, 70, 300, 1, 1, 64, values="growing"),
    "one_large_key": AttentionProblem(1, 70, 300, 1, 1, 64, values="one_large_key"),
    "identical_keys": AttentionProblem(1, 70, 300, 1, 1, 64, values="identical_keys"),
}


def test_table_has_runnable_kernels_of_every_type() -> None:
    dtypes = {flashattn.DType(kernel.config.dtype) for kernel in runnable_kernels()}
    assert dtypes == set(flashattn.DType)


def with_latent_tokens(problem: AttentionProblem) -> AttentionProblem:
    """Packed, tokens of this many columns take more memory: fewer heads are packed at a time."""
    return dataclasses.replace(
        problem,
        batch=min(problem.batch, 5),
        d_head=latent.COLUMNS,
        d_head_v=latent.CODES,
    )


def with_quant_blocks(problem: AttentionProblem) -> AttentionProblem:
    """The next head dimension of whole blocks."""
    return dataclasses.replace(problem, d_head=-(-problem.d_head // 32) * 32)


@pytest.mark.parametrize("short_form", KERNELS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_kernel_agrees_with_the_oracle(short_form: str, problem: AttentionProblem) -> None:
    kernel = KERNELS[short_form]
    if not kernel.is_runnable:
        pytest.skip("not on this machine")
    names = {1: "float16", 2: "bfloat16", 3: "float32", 4: E4M3, 5: LATENT, 6: "q8_0", 7: "q4_0"}
    dtype = names[kernel.config.dtype]
    problem = dataclasses.replace(problem, dtype=dtype)
    if dtype == LATENT:
        problem = with_latent_tokens(problem)
    if dtype in QUANT_BLOCKS:
        problem = with_quant_blocks(problem)
    q = np.empty(problem.q_shape, dtype_of(problem.types[0]))
    k = np.empty(problem.k_shape, dtype_of(dtype))
    support = flashattn.query_support(q, k, k, config=kernel.config, **problem.call_options())
    if support:
        o, lse = check(problem, config=short_form)
        at_begin = run(dataclasses.replace(problem, layouts=("at_begin",) * 4), config=short_form)
        assert at_begin[0].tobytes() == o.tobytes() and at_begin[1].tobytes() == lse.tobytes()
    else:
        with pytest.raises(NotImplementedError, match=kernel.name):
            run(problem, config=short_form)


def test_table_is_strictly_ascending() -> None:
    configs = [kernel.config for kernel in flashattn.kernels()]
    assert all(a < b for a, b in zip(configs, configs[1:]))


@pytest.mark.parametrize("short_form", KERNELS)
def test_every_row_is_found_by_its_configuration_and_its_short_form(short_form: str) -> None:
    kernel = KERNELS[short_form]
    assert flashattn.Config.parse(short_form) == kernel.config
    if kernel.is_runnable:
        assert flashattn.lookup_kernel(kernel.config) == kernel
        assert flashattn.lookup_kernel(short_form) == kernel


@pytest.mark.parametrize("short_form", KERNELS)
def test_every_near_miss_is_answered(short_form: str) -> None:
    """Each field is changed, which gives another row, or a refusal that names a reason."""
    config = KERNELS[short_form].config
    rows = {kernel.config: kernel for kernel in flashattn.kernels()}
    for field in dataclasses.fields(config):
        for step in (-1, 1):
            value = getattr(config, field.name) + step
            near = dataclasses.replace(config, **{field.name: value})
            if near in rows and rows[near].is_runnable:
                assert flashattn.lookup_kernel(near) == rows[near]
                continue
            with pytest.raises(LookupError) as refusal:
                flashattn.lookup_kernel(near)
            assert len(str(refusal.value)) > 10


def test_selection_names_a_kernel_that_runs() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        q = np.broadcast_to(np.zeros(64, dtype_of(dtype)), (1, 7, 2, 64))
        selection = flashattn.select_config(q, q, q, causal=True)
        assert flashattn.lookup_kernel(selection.config).is_runnable
        assert selection.reason
