"""Dropout on every CUDA row that has it: the weights that are dropped are the CPU's, O and
gradients are the oracle's, and graphs drop others at each launch."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import gpu_problems
import numpy as np
import pytest
import torch
from bias_cases import BiasCase
from device_memory import upload
from flashattn import DType, Feature, dropout
from flashattn.compat import fa2
from gpu_problems import configs_for, device_inputs, same_bits
from gradient_problems import GradientProblem
from gradient_runs import OPS, DeviceRun, gradient_rows, serves
from memory import dtype_of
from problems import AttentionProblem

STATE = (0x0123456789ABCDEF, 2**35 + 11)
BASE = AttentionProblem(2, 150, 190, 4, 2, 64, dropout_p=0.3, rng_state=STATE)
PROBLEMS = {
    "full": BASE,
    "causal": replace(BASE, causal=True),
    "window": replace(BASE, window_size=(60, 10)),
    "softcap_sinks": replace(BASE, causal=True, softcap=2.0, sinks=(0.5, -1.0, 2.0, 0.0)),
    "ragged": replace(
        BASE, batch=3, causal=True, cu_seqlens_q=(0, 1, 1, 150), cu_seqlens_k=(0, 77, 190, 300)
    ),
    "lengths": replace(BASE, seqused_q=(150, 33), seqused_k=(0, 177), leftpad_k=(0, 40)),
    "few_queries": replace(BASE, seqlen_q=3, seqlen_k=1000),
    "one_key": replace(BASE, seqlen_q=239, seqlen_k=1),
    "bias": replace(BASE, causal=True, bias=BiasCase(slopes=1, kind="float16")),
    "bits": replace(BASE, dropout_p=0.7, bias=BiasCase(kind="bits")),
    "one_group": replace(BASE, n_heads_kv=1, d_head_v=40),
}
HEADS = (64, 128, 256)
DTYPES = ("float16", "bfloat16")


def _typed(name: str, dtype: str, d_head: int) -> AttentionProblem:
    return replace(PROBLEMS[name], dtype=dtype, d_head=d_head)


def _forward_rows(p: AttentionProblem) -> list[flashattn.Config]:
    rows = configs_for(p)
    assert rows and all(config.features & Feature.DROPOUT for config in rows)
    return rows


def _rows(op: flashattn.Op, p: AttentionProblem) -> list[flashattn.Config]:
    return [row.config for row in gradient_rows(op) if serves(row.config, p)]


# ---- Which weights are dropped ----


def _one_hot(p: AttentionProblem, first: int) -> list[np.ndarray]:
    """Returns q and k of zeros, and a v whose column i is 1 at key first + i alone."""
    q, k, v = (np.zeros(shape, dtype_of(p.dtype)) for shape in (p.q_shape, p.k_shape, p.v_shape))
    for i in range(min(p.d_head, p.seqlen_k - first)):
        v[:, first + i, :, i] = 1
    return [q, k, v]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d_head", HEADS)
def test_the_weights_that_are_dropped_are_those_of_the_cpu(d_head: int, dtype: str) -> None:
    p = replace(BASE, dropout_p=0.5, dtype=dtype, d_head=d_head)
    kept = dropout.kept(0.5, STATE, 2, 4, 150, 190)
    for config in (*_forward_rows(p), None):
        for first in range(0, 190, d_head):
            tensors = [upload(x, "contiguous") for x in _one_hot(p, first)]
            o, _ = gpu_problems.run(p, tensors, config)
            width = min(d_head, 190 - first)
            found = o.astype(np.float32).transpose(0, 2, 1, 3)[..., :width]
            assert ((found != 0) == kept[..., first : first + width]).all(), config
            np.testing.assert_allclose(found[found != 0], 2 / 190, rtol=1e-2)


def test_large_numbers_of_the_state_and_of_places() -> None:
    """The last sequence and head, and keys beyond 2^16."""
    p = AttentionProblem(
        3, 20, 70000, 5, 5, 64, "bfloat16", dropout_p=0.5, rng_state=(2**64 - 1, 2**37 - 1)
    )
    for config in _forward_rows(p):
        tensors = [upload(x, "contiguous") for x in _one_hot(p, 69936)]
        o, _ = gpu_problems.run(p, tensors, config)
        kept = dropout.kept_of_head(0.5, p.rng_state, 2, 5, 4, 20, 70000)[:, 69936:]
        assert ((o[2, :, 4].astype(np.float32) != 0) == kept).all(), config


# ---- The oracle ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d_head", HEADS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_row(name: str, d_head: int, dtype: str) -> None:
    p = _typed(name, dtype, d_head)
    for config in _forward_rows(p):
        gpu_problems.check(p, config)


def test_any_alignment() -> None:
    for d_head in (50, 72, 130):
        p = replace(BASE, causal=True, dtype="bfloat16", d_head=d_head)
        gpu_problems.check(p)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d_head", HEADS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_of_every_row(name: str, d_head: int, dtype: str) -> None:
    p = _typed(name, dtype, d_head)
    run = DeviceRun(GradientProblem(p, has_d_lse=name == "causal"))
    dq, dkv = (_rows(op, p) for op in OPS)
    assert dq and dkv
    for i in range(max(len(dq), len(dkv))):
        run.compare(run.launch(dq[i % len(dq)], dkv[i % len(dkv)]))


def test_rows_of_every_type_and_head_dimension() -> None:
    for op in (flashattn.Op.FORWARD, *OPS):
        rows = gradient_rows(op)
        found = {
            (c.dtype, c.d_head) for c in (r.config for r in rows) if c.features & Feature.DROPOUT
        }
        assert found >= {(t, d) for t in (DType.FP16, DType.BF16) for d in HEADS}


# ---- The state in device memory ----


def _calls(p: AttentionProblem, state: torch.Tensor) -> list[torch.Tensor]:
    """Returns O and gradients of one forward and one backward pass, on the current stream."""
    q, k, v = device_inputs(p)
    options = {"causal": True, "dropout_p": p.dropout_p, "rng_state": state}
    o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
    return [o, *flashattn.flash_attn_backward(o, q, k, v, o, lse, **options)[:3]]


@pytest.mark.parametrize("d_head", HEADS)
def test_arrays_and_numbers_are_the_same_state(d_head: int) -> None:
    p = replace(BASE, causal=True, dtype="bfloat16", d_head=d_head)
    state = torch.tensor(np.array(STATE, np.uint64).view(np.int64), device="cuda")
    of_array, of_numbers = _calls(p, state), _calls(p, STATE)
    assert all(torch.equal(x, y) for x, y in zip(of_array, of_numbers))


def test_a_graph_drops_others_at_each_launch() -> None:
    p = replace(BASE, dtype="bfloat16", d_head=128)
    state = torch.tensor([5, 0], dtype=torch.int64, device="cuda")
    q, k, v = device_inputs(p)
    options = {"causal": True, "dropout_p": 0.3, "rng_state": state}

    def call() -> list[torch.Tensor]:
        o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
        return [o, *flashattn.flash_attn_backward(o, q, k, v, o, lse, **options)[:3]]

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    seen = []
    for step in range(3):
        state[1] = step
        graph.replay()
        found = [x.clone() for x in outputs]
        expected = call()
        assert all(torch.equal(x, y) for x, y in zip(found, expected))
        seen.append(found[0])
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


def test_a_graph_draws_another_state_of_torchs_generator_at_each_launch() -> None:
    p = replace(BASE, dtype="bfloat16", d_head=64)
    q, k, v = (x.requires_grad_() for x in device_inputs(p))

    def call() -> list[torch.Tensor]:
        o = fa2.flash_attn_func(q, k, v, 0.3, causal=True)
        return [o.detach(), *torch.autograd.grad(o, (q, k, v), o.detach())]

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    seen = []
    for _ in range(3):
        torch.cuda.manual_seed(4)
        graph.replay()
        seen.append([x.clone() for x in outputs])
        graph.replay()
        seen.append([x.clone() for x in outputs])
    assert all(torch.equal(x, y) for x, y in zip(seen[0], seen[2]))
    assert not torch.equal(seen[0][0], seen[1][0])


def test_functions_of_flash_attn_have_the_gradients_of_the_same_weights() -> None:
    qkv = torch.randn(2, 130, 3, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.manual_seed(3)
    o = fa2.flash_attn_qkvpacked_func(qkv, 0.4, causal=True)
    (found,) = torch.autograd.grad(o, qkv, o.detach())
    torch.manual_seed(3)
    state = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device="cuda")
    options = {"causal": True, "dropout_p": 0.4, "rng_state": tuple(state.tolist())}
    q, k, v = qkv.detach().unbind(2)
    expected, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
    assert torch.equal(o, expected)
    gradients = flashattn.flash_attn_backward(expected, q, k, v, expected, lse, **options)
    assert torch.equal(found, torch.stack(gradients[:3], 2))


def test_a_probability_of_0_takes_the_other_rows() -> None:
    p = replace(BASE, dtype="bfloat16", dropout_p=0.0)
    tensors = device_inputs(p)
    plain = flashattn.select_config(*tensors)
    assert str(flashattn.select_config(*tensors, dropout_p=0.0).config) == str(plain.config)
    assert not plain.config.features & Feature.DROPOUT


def test_the_same_bits_in_every_call() -> None:
    p = replace(BASE, causal=True, dtype="bfloat16", d_head=128)
    first = gpu_problems.run(p)
    for _ in range(5):
        assert same_bits(first, gpu_problems.run(p))


def test_a_row_with_dropout_serves_a_call_without() -> None:
    p = replace(BASE, dtype="bfloat16", dropout_p=0.0)
    rows = [c for c in configs_for(p) if c.features & Feature.DROPOUT]
    assert rows
    for config in rows:
        gpu_problems.check(p, config)


@pytest.mark.parametrize("d_head", HEADS)
def test_a_probability_that_rounds_to_1_drops_every_weight(d_head: int) -> None:
    """The threshold is 2^16 then, which 16 bits do not hold."""
    p = replace(BASE, causal=True, dtype="bfloat16", d_head=d_head, dropout_p=1 - 2.0**-20)
    for config in _forward_rows(p):
        assert not gpu_problems.run(p, config=config)[0].any(), config
    run = DeviceRun(GradientProblem(p))
    for dkv in _rows(OPS[1], p):
        assert not any(x.any() for x in run.launch(_rows(OPS[0], p)[0], dkv)[:3]), dkv
