"""flashattn.jax on CUDA devices: against the float64 oracle, and bit for bit against the functions
for all arrays, with gradients; decode rows, whose memory XLA allocates; command buffers, which are
CUDA graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

# Memory is torch's, too. Both are read when JAX makes its devices.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

pytest.importorskip("jax")

import flashattn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from bias_cases import BiasCase  # noqa: E402
from device_memory import download  # noqa: E402
from expectation import assert_agrees  # noqa: E402
from flashattn.jax import flash_attention  # noqa: E402
from gpu_problems import configs_for, device_options, on_device, run  # noqa: E402
from jax_cases import DERIVED, GradientCase, run_problem  # noqa: E402
from memory import LATENT  # noqa: E402
from paging import PagedProblem, make_pages  # noqa: E402
from problems import AttentionProblem, expected, fill_unused, make_inputs  # noqa: E402

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "gpu", reason="needs a JAX with CUDA (jax[cuda13])"
)

P = AttentionProblem(2, 300, 400, 8, 2, 128, "bfloat16", causal=True)
DECODE = AttentionProblem(
    4, 1, 9000, 16, 2, 128, "bfloat16", causal=True, seqused_k=(9000, 17, 0, 5000)
)
PROBLEMS = {
    "bfloat16": P,
    "float16": replace(P, dtype="float16", d_head=64, window_size=(70, 9), causal=False),
    "float32 O": replace(P, o_dtype="float32"),
    "softcap": replace(P, softcap=5.0),
    "sinks": replace(P, sinks=(0.5, -1.0, 3.0, -2.0) * 2),
    "lengths": replace(P, seqused_q=(300, 3), seqused_k=(80, 400)),
    "ragged": replace(P, batch=3, cu_seqlens_q=(0, 1, 1, 271), cu_seqlens_k=(0, 390, 395, 695)),
    "e4m3": replace(
        P, dtype="float8_e4m3fn", q_dtype="bfloat16", o_dtype="bfloat16", k_descale=0.5,
        v_descale=((1.0, 2.0), (0.5, 1.5)),
    ),
    "slopes": replace(P, bias=BiasCase(slopes=2)),
    "mask of numbers": replace(P, bias=BiasCase(kind="float32")),
    "mask of bits": replace(P, bias=BiasCase(kind="bool")),
    "decode": DECODE,
    "few queries": replace(DECODE, seqlen_q=5),
    "decode with a mask": replace(DECODE, bias=BiasCase(kind="bool", repeats="hq")),
}  # fmt: skip


def run_and_compare(p: AttentionProblem) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE), which have the bits of the functions for all arrays."""
    outputs = run_problem(p, make_inputs(p))
    for own, other in zip(outputs, run(p)):
        assert np.array_equal(own.astype(np.float32), other.astype(np.float32), equal_nan=True)
    return outputs


@pytest.mark.parametrize("seqlen_q", [1, 300])
def test_a_copy_of_q_lies_in_the_workspace(seqlen_q: int) -> None:
    run_and_compare(replace(P, seqlen_q=seqlen_q, q_dtype="float32"))


@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
def test_results_are_the_oracles(p: AttentionProblem) -> None:
    inputs = make_inputs(p)
    o, lse = run_and_compare(p)
    fill_unused(p, o, lse)
    p_dtype = "bfloat16" if p.dtype == "float8_e4m3fn" else p.dtype
    assert_agrees(o, lse, expected(p, inputs, p_dtype), f"replay: {p}")


@pytest.mark.parametrize("p", [P, DECODE, replace(DECODE, seqlen_q=5)], ids=str)
@pytest.mark.parametrize("kind", ["table", "rows", "indptr", "slots"])
def test_pages(kind: str, p: AttentionProblem) -> None:
    q = PagedProblem(p, 64, kind)
    inputs = make_inputs(q.dense)
    pages, options = make_pages(q, inputs)
    o, lse = run_problem(replace(p, seqused_k=None), pages, options)
    assert_agrees(o, lse, expected(q.dense, inputs, p.dtype), f"replay: {q}")


MLA = AttentionProblem(4, 1, 3000, 16, 1, 576, "bfloat16", causal=True, d_head_v=512)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_v_may_be_the_first_columns_of_k(dtype: str) -> None:
    """The memory of V is K's, as kernels of latent attention need it."""
    p = replace(MLA, dtype=dtype)
    q, k, _ = make_inputs(p)
    attend = jax.jit(
        lambda q, k: flash_attention(q, k, None, d_head_v=512, causal=True, return_lse=True)
    )
    o, lse = map(np.array, attend(q, k))
    wanted = expected(p, [q, k, k[..., :512]], p.dtype)
    assert_agrees(o, lse, wanted, f"replay: {p}")


def test_latent_tokens() -> None:
    p = replace(MLA, dtype=LATENT, q_dtype="bfloat16", seqused_k=(3000, 17, 0, 900))
    if not configs_for(p):
        pytest.skip("no kernel here serves latent tokens")
    run_and_compare(p)


def test_quantised_blocks_are_refused_by_name() -> None:
    q, k, v = make_inputs(replace(P, dtype="q8_0", q_dtype="bfloat16"))
    with pytest.raises(NotImplementedError, match="Q8_0"):
        flash_attention(q, k, v, kv_dtype="q8_0")


def test_vmap_and_scan() -> None:
    q, k, v = map(jnp.asarray, make_inputs(P))
    one = flash_attention(q, k, v, causal=True)
    mapped = jax.jit(jax.vmap(lambda q, k, v: flash_attention(q, k, v, causal=True)))
    found = mapped(*(jnp.stack([x] * 2) for x in (q, k, v)))
    np.testing.assert_allclose(
        found.astype(np.float32), jnp.stack([one] * 2).astype(np.float32), atol=2e-2
    )
    last, _ = jax.jit(
        lambda q: jax.lax.scan(lambda c, _: (flash_attention(c, k, v, causal=True), 0), q, length=3)
    )(q)
    wanted = q
    for _ in range(3):
        wanted = flash_attention(wanted, k, v, causal=True)
    assert (last == wanted).all()


def test_devices_are_those_of_the_arrays() -> None:
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    q, k, v = (jax.device_put(x, jax.devices()[1]) for x in make_inputs(P))
    o = flash_attention(q, k, v, causal=True)
    assert o.devices() == {jax.devices()[1]}
    wanted = flash_attention(*map(jnp.asarray, make_inputs(P)), causal=True)
    assert np.array_equal(o, wanted)


COMMAND_BUFFERS = """
import jax, jax.numpy as jnp, numpy as np
from flashattn.jax import flash_attention

rng = np.random.default_rng(0)
def random(*shape): return jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
k, v = random(2, 9000, 2, 128), random(2, 9000, 2, 128)

@jax.jit
def layers(q, k, v, lengths):
    for _ in range(4):
        q = q + flash_attention(q * 2, k, v, seqused_k=lengths, causal=True)
    return q

for length in (9000, 100, 8999, 5000, 1):  # the first call has kernels that nobody loaded
    for seqlen_q in (1, 64):
        q, lengths = random(2, seqlen_q, 16, 128), jnp.array([length, 9000], jnp.int32)
        found = layers(q, k, v, lengths)
        for _ in range(4):
            q = q + flash_attention(q * 2, k, v, seqused_k=lengths, causal=True)
        np.testing.assert_allclose(
            np.asarray(found, np.float32), np.asarray(q, np.float32), rtol=2e-2, atol=2e-2
        )
"""


@pytest.mark.parametrize("commands", ["FUSION,CUSTOM_CALL", ""])
def test_command_buffers(commands: str) -> None:
    """With them and without: a call of a graph is replayed with other lengths and queries."""
    flags = f"--xla_gpu_enable_command_buffer={commands} --xla_gpu_graph_min_graph_size=1"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND_BUFFERS],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_errors_are_the_librarys() -> None:
    """The message names what has no kernel, while the call is compiled."""
    x = jnp.ones((1, 1, 1, 520), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="d_head|kernel"):
        jax.jit(lambda x: flash_attention(x, x, x))(x)


# ---- Gradients ----

SMALL = replace(P, seqlen_q=130, seqlen_k=190)
DERIVATIVES = {
    "bfloat16": SMALL,
    "float16": replace(SMALL, dtype="float16", d_head=64, window_size=(70, 9), causal=False),
    "float32 O": replace(SMALL, o_dtype="float32"),
    "float32 Q": replace(SMALL, q_dtype="float32"),
    "rows that are no chunks": replace(SMALL, d_head=50),
    "256": replace(SMALL, d_head=256),
    "softcap": replace(SMALL, softcap=5.0),
    "sinks": replace(SMALL, sinks=(0.5, -1.0, 3.0, -2.0) * 2),
    "lengths": replace(SMALL, seqused_q=(130, 3), seqused_k=(80, 190), leftpad_k=(5, 0)),
    "ragged": replace(
        SMALL, batch=3, cu_seqlens_q=(0, 1, 1, 121), cu_seqlens_k=(0, 90, 95, 195)
    ),
    "slopes": replace(SMALL, bias=BiasCase(slopes=2)),
    "mask of bits": replace(SMALL, bias=BiasCase(kind="bool")),
}  # fmt: skip


def gradients_by_functions(p: AttentionProblem, case: GradientCase) -> dict[str, np.ndarray]:
    """Returns the gradients that the functions for all arrays compute."""
    d_o, d_lse, q, k, v = (
        on_device(np.array(x)) for x in (case.d_o, case.d_lse, *(case.arrays[n] for n in "qkv"))
    )
    options = {**device_options(p), **({"out_dtype": p.o_dtype} if p.o_dtype else {})}
    o, lse = flashattn.flash_attn_varlen_func(q, k, v, return_lse=True, **options)
    found = flashattn.flash_attn_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options)
    return {name: download(x) for name, x in zip(DERIVED, found) if x is not None}


@pytest.mark.parametrize("p", DERIVATIVES.values(), ids=DERIVATIVES)
def test_gradients_are_those_of_the_functions(p: AttentionProblem) -> None:
    case = GradientCase(p)
    wanted = gradients_by_functions(p, case)
    for found in (case.gradients(case.own), jax.jit(case.gradients)(case.own)):
        for name, x in wanted.items():
            own = np.array(found[name], np.float32)
            assert np.any(own) and np.array_equal(own, x.astype(np.float32)), name


def test_tokens_behind_the_last_sequence_have_gradients_of_zero() -> None:
    p = DERIVATIVES["ragged"]
    case = GradientCase(p)
    wanted = case.gradients(case.own)
    more = 700
    longer = {
        name: np.concatenate([x, np.full((more, *x.shape[1:]), 7, x.dtype)]) if name in "kv" else x
        for name, x in case.own.items()
    }
    for _ in range(3):
        found = jax.jit(case.gradients)(longer)
        for name in "kv":
            assert not found[name][-more:].any()
            assert np.array_equal(found[name][:-more], wanted[name])


def test_vmap_of_gradients() -> None:
    """Several calls become one of a larger batch, for which another kernel may be chosen."""
    case = GradientCase(DERIVATIVES["bfloat16"])
    twice = {name: jnp.stack([x, -x]) for name, x in case.own.items()}
    found = jax.vmap(case.gradients)(twice)
    for i, sign in enumerate((1, -1)):
        one = case.gradients({name: sign * x for name, x in case.own.items()})
        for name, x in one.items():
            wanted = np.array(x, np.float32)
            np.testing.assert_allclose(
                np.array(found[name][i], np.float32), wanted, atol=2e-2 * np.abs(wanted).max()
            )
