"""The oracle of gradients is compared with central differences of the forward pass's, with numbers
found by hand, and the comparator with wrong gradients."""

from __future__ import annotations

import numpy as np
import pytest
from flashattn import gradient_oracle, oracle
from flashattn.compare import compare_gradient
from memory import dtype_of

DIRECTIONS, STEP = 20, 2e-4
SINKS = np.array([0.5, -1.0, 2.0, 0.0])
BITS = np.random.default_rng(5).random((2, 4, 6, 9)) < 0.7
NUMBERS = np.where(BITS, np.random.default_rng(6).standard_normal(BITS.shape), -np.inf)
RAGGED = {"cu_seqlens_q": (0, 0, 5, 9), "cu_seqlens_k": (0, 4, 4, 12)}

# Options of the forward pass, and the shapes of Q, K and V where they are not the usual ones.
PROBLEMS = {
    "full": {},
    "causal": {"causal": True},
    "more queries than keys": {"causal": True, "seqlens": (9, 4)},
    "window": {"window_size": (2, 1)},
    "chunks": {"attention_chunk": 3, "causal": True},
    "a shifted diagonal": {"causal": True, "diagonal_offset": -3, "window_size": (3, -1)},
    "shifted slopes": {"alibi_slopes": np.array([0.5, 0.25, 0.0, 1.0]), "diagonal_offset": 4},
    "softcap": {"softcap": 1.5},
    "scale": {"softmax_scale": 0.7},
    "sinks": {"sinks": SINKS, "causal": True},
    "sinks of no weight": {"sinks": np.full(4, -np.inf)},
    "slopes": {"alibi_slopes": np.array([0.5, 0.25, 0.0, 1.0])},
    "slopes of sequences": {"alibi_slopes": np.arange(8.0).reshape(2, 4) / 8, "softcap": 2.0},
    "numbers": {"attn_mask": NUMBERS, "mask_head_scale": np.array([1.0, -2.0, 0.0, 0.5])},
    "bits": {"attn_mask": BITS, "sinks": SINKS},
    "bits of the last keys": {"attn_mask": BITS[..., :3], "mask_keys": 3},
    "lengths": {"seqused_q": (2, 6), "seqused_k": (9, 5), "causal": True},
    "no queries and no keys": {"seqused_q": (0, 6), "seqused_k": (9, 0), "sinks": SINKS},
    "padding": {"leftpad_k": (3, 20), "causal": True},
    "ragged": {**RAGGED, "causal": True, "sinks": SINKS, "tokens": (9, 12)},
    "ragged with less in use": {**RAGGED, "seqused_q": (0, 4, 3), "tokens": (9, 12)},
    "dropout": {"dropout_p": 0.3, "rng_state": (5, 7), "sinks": SINKS, "causal": True},
    "wide V": {"d_head_v": 7, "softcap": 3.0},
}


def _inputs(options: dict) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, dict]:
    """Returns (inputs, dO, dLSE, options of the oracle)."""
    rng = np.random.default_rng(3)
    options = dict(options)
    d_head, d_head_v = 4, options.pop("d_head_v", 4)
    of_q, of_k = ((2, n) for n in options.pop("seqlens", (6, 9)))
    if "tokens" in options:
        of_q, of_k = ((n,) for n in options.pop("tokens"))
    inputs = {
        "q": rng.standard_normal((*of_q, 4, d_head)),
        "k": rng.standard_normal((*of_k, 2, d_head)),
        "v": rng.standard_normal((*of_k, 2, d_head_v)),
    }
    if "sinks" in options:
        inputs["sinks"] = options.pop("sinks")
    d_o = rng.standard_normal((*of_q, 4, d_head_v))
    d_lse = rng.standard_normal((*of_q[:-1], 4, of_q[-1]))
    return inputs, d_o, d_lse, options


def _loss(inputs: dict, d_o: np.ndarray, d_lse: np.ndarray | None, options: dict) -> float:
    o, lse = oracle.attention(**inputs, **options)
    of_lse = 0.0 if d_lse is None else np.where(np.isfinite(lse), d_lse * lse, 0).sum()
    return float((d_o * o).sum() + of_lse)


def _difference(
    name: str, direction: np.ndarray, inputs: dict, *call: object, step: float
) -> float:
    losses = [
        _loss({**inputs, name: inputs[name] + side * step * direction}, *call) for side in (1, -1)
    ]
    return (losses[0] - losses[1]) / (2 * step)


@pytest.mark.parametrize("with_lse", [False, True], ids=["o", "o and lse"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_central_differences(problem: str, with_lse: bool) -> None:
    """Differences of two steps are combined such that their error falls with the fourth power."""
    inputs, d_o, d_lse, options = _inputs(PROBLEMS[problem])
    d_lse = d_lse if with_lse else None
    found = gradient_oracle.gradients(
        inputs["q"], inputs["k"], inputs["v"], d_o, d_lse, **options, sinks=inputs.get("sinks")
    )
    rng = np.random.default_rng(4)
    for name, gradient in zip(("q", "k", "v", "sinks"), found):
        if gradient is None or not np.isfinite(inputs[name]).all():
            continue
        assert gradient.shape == inputs[name].shape and np.isfinite(gradient).all()
        for _ in range(DIRECTIONS):
            direction = rng.standard_normal(gradient.shape)
            one, two = (
                _difference(name, direction, inputs, d_o, d_lse, options, step=n * STEP)
                for n in (1, 2)
            )
            expected = (gradient * direction).sum()
            allowed = 1e-7 * max(abs(expected), np.linalg.norm(gradient))
            assert abs((4 * one - two) / 3 - expected) <= allowed + 1e-11, name


def _column(*values: float) -> np.ndarray:
    """[1, seqlen, 1, 1]"""
    return np.array(values, np.float64).reshape(1, -1, 1, 1)


def test_by_hand() -> None:
    """Weights 1/4 and 3/4 of values 0 and 8, so that O is 6: dS is 1/4 (0 - 6) and 3/4 (8 - 6)."""
    k = _column(0, np.log(3))
    found = gradient_oracle.gradients(_column(1), k, _column(0, 8), _column(1))
    assert found.dv.ravel() == pytest.approx([0.25, 0.75])
    assert found.dk.ravel() == pytest.approx([-1.5, 1.5])
    assert found.dq.ravel() == pytest.approx([1.5 * np.log(3)])


def test_sinks_by_hand() -> None:
    """A sink as heavy as the only key halves its weight."""
    found = gradient_oracle.gradients(
        _column(1), _column(0), _column(8), _column(1), _column(3)[..., 0], sinks=np.zeros(1)
    )
    assert found.dv.ravel() == pytest.approx([0.5])
    assert found.dk.ravel() == pytest.approx([0.5 * (8 - 4) + 3])
    assert found.d_sinks == pytest.approx([-0.5 * 4])


def test_an_overwhelming_sink_leaves_the_gradient_of_lse() -> None:
    found = gradient_oracle.gradients(
        _column(1), _column(0), _column(8), _column(1), _column(3)[..., 0], sinks=np.full(1, np.inf)
    )
    assert found.dk.ravel() == [3] and found.dv.ravel() == [0] and found.d_sinks.tolist() == [0]


def test_hidden_nan_reaches_nothing() -> None:
    nan = np.nan
    found = gradient_oracle.gradients(
        _column(1, 2), _column(3, nan), _column(1, nan), _column(1, nan), causal=True
    )
    assert np.isnan(found.dq.ravel()).tolist() == [False, True]
    assert np.isnan(found.dk.ravel()).tolist() == [True, True]
    hidden = gradient_oracle.gradients(
        _column(1, nan), _column(3, nan), _column(1, nan), _column(1, nan), causal=True,
        seqused_q=[1], seqused_k=[1],
    )  # fmt: skip
    assert all(np.isfinite(x).all() for x in hidden[:3])


def test_naive_rounds() -> None:
    """Naive of bf16 is as far from the oracle as the bits of P, dS and O say."""
    inputs, d_o, _, options = _inputs(PROBLEMS["causal"])
    bf16 = {name: x.astype(dtype_of("bfloat16")) for name, x in inputs.items()}
    o = oracle.attention(**bf16, **options)[0].astype(dtype_of("bfloat16"))
    d_o = d_o.astype(o.dtype)
    exact = gradient_oracle.gradients(*bf16.values(), d_o, **options)
    plain = gradient_oracle.naive(*bf16.values(), d_o, o=o, **options)
    for x, y in zip(plain[:3], exact):
        assert x.dtype == np.float32
        error = np.linalg.norm(x.astype(np.float64) - y) / np.linalg.norm(y)
        assert 1e-4 < error < 2e-2


def test_magnitudes_bound_gradients() -> None:
    inputs, d_o, d_lse, options = _inputs(PROBLEMS["sinks"])
    call = (inputs["q"], inputs["k"], inputs["v"], d_o, d_lse)
    options["sinks"] = inputs["sinks"]
    found = gradient_oracle.gradients(*call, **options)
    for x, bound in zip(found, gradient_oracle.magnitudes(*call, **options)):
        assert (np.abs(x) <= np.abs(bound) + 1e-15).all()


@pytest.mark.parametrize("spoiled", ["a sign", "a part", "NaN", "an infinity"])
def test_wrong_gradients_fail(spoiled: str) -> None:
    exact = np.random.default_rng(0).standard_normal((4, 50))
    found = exact.astype(np.float32)
    naive = found.copy()
    if spoiled == "a sign":
        found[2, 7] *= -1
    elif spoiled == "a part":
        found *= 1 + 4e-5
    else:
        found[0, 0] = np.nan if spoiled == "NaN" else np.inf
    assert compare_gradient("dq", naive, exact, naive[None], np.abs(exact)).ok
    assert not compare_gradient("dq", found, exact, naive[None], np.abs(exact)).ok


def test_rounding_may_fall_either_way() -> None:
    """The bound holds what the naive implementation may have lost, however near to the oracle the
    last rounding took it."""
    bf16 = dtype_of("bfloat16")
    exact, magnitude = np.array([-0.47845845]), np.zeros(1)
    naive = np.array([[-0.47758]], np.float32)  # it is rounded to -0.478515625, which is nearer
    other_side = np.array([-0.4765625]).astype(bf16)
    assert abs(float(naive.astype(bf16)[0, 0]) - exact[0]) < 1e-4
    assert compare_gradient("dk", other_side, exact, naive, magnitude).ok
    two_steps = np.array([-0.474609375]).astype(bf16)
    assert not compare_gradient("dk", two_steps, exact, naive, magnitude).ok


def test_rounding_p_may_hide_an_error() -> None:
    """Of several naive implementations the one with the largest error sets the bound."""
    exact, found = np.zeros(1), np.array([1e-3], np.float32)
    naive = np.array([[1e-4], [1e-3]], np.float32)
    assert compare_gradient("dq", found, exact, naive, exact).ok
    assert not compare_gradient("dq", found, exact, naive[:1], exact).ok
