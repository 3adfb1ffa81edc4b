"""Values that gradients on a CUDA device must stand: NaN and infinity in hidden and in visible
places, rows that see no key, and sinks of any size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flashattn import Arch
from gradient_problems import GradientProblem, random_d_o
from gradient_runs import DeviceRun, check, first_rows, heads_of
from problems import AttentionProblem, make_inputs

DTYPES = ("float16", "bfloat16")
every_type = pytest.mark.parametrize("dtype", DTYPES)
every_head = pytest.mark.parametrize("d_head", [64, 128, 192, 256])


def _check(g: GradientProblem, inputs: list[np.ndarray], d_o: np.ndarray):
    run = DeviceRun(g, inputs, d_o)
    found = run.launch()
    run.compare(found, inputs)
    return found


@every_type
@every_head
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_in_use_matters_nowhere(value: float, d_head: int, dtype: str) -> None:
    """Rows beyond lengths, and padding at the left, are in none of the tensors looked at."""
    p = AttentionProblem(2, 120, 130, 4, 2, **heads_of(d_head), dtype=dtype, causal=True,
                         seqused_q=(73, 120), seqused_k=(130, 91), leftpad_k=(35, 0))  # fmt: skip
    g = GradientProblem(p, has_d_lse=True)
    plain = DeviceRun(g).launch()
    q, k, v = (x.copy() for x in make_inputs(p))
    d_o = random_d_o(g)
    for x in (q, d_o):
        x[0, 73:] = value
    for x in (k, v):
        x[0, :35] = x[1, 91:] = value
    found = DeviceRun(g, [q, k, v], d_o).launch()
    assert all(x.tobytes() == y.tobytes() for x, y in zip(found[:3], plain[:3]))
    assert all(np.isfinite(x.astype(np.float32)).all() for x in found[:3])


@every_type
@every_head
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("masks", [{"causal": True}, {"window_size": (3, 2)},
                                   {"causal": True, "attention_chunk": 8}], ids=str)  # fmt: skip
def test_keys_that_nobody_sees(masks: dict, value: float, d_head: int, dtype: str) -> None:
    """The first queries see none, and the last keys are seen by none: their K, V, Q and dO are in
    the same tiles as others."""
    more_queries = AttentionProblem(1, 90, 74, 2, 1, **heads_of(d_head), dtype=dtype, **masks)
    q, k, v = make_inputs(more_queries)
    d_o = random_d_o(GradientProblem(more_queries))
    unseen = 10  # queries, that stand before the first key by six and more
    q, d_o = q.copy(), d_o.copy()
    q[:, :unseen] = d_o[:, :unseen] = value
    _check(GradientProblem(more_queries), [q, k, v], d_o)
    wide = AttentionProblem(1, 10, 60, 2, 1, **heads_of(d_head), dtype=dtype, window_size=(3, 2))
    q, k, v = make_inputs(wide)
    k, v = k.copy(), v.copy()
    k[:, :40] = v[:, :40] = value
    _check(GradientProblem(wide), [q, k, v], random_d_o(GradientProblem(wide)))


@every_type
@every_head
@pytest.mark.parametrize("name", ["q", "k", "v", "d_o"])
@pytest.mark.parametrize("masks", [{"causal": True}, {"causal": True, "window_size": (50, 0)}, {}])
def test_a_visible_nan_reaches_what_depends_on_it(
    masks: dict, name: str, d_head: int, dtype: str
) -> None:
    """Rows that do not see it stay finite."""
    p = AttentionProblem(1, 140, 140, 2, 1, **heads_of(d_head), dtype=dtype, **masks)
    g = GradientProblem(p)
    tensors = dict(zip("qkv", make_inputs(p))) | {"d_o": random_d_o(g)}
    tensors[name] = tensors[name].copy()
    tensors[name][0, 71, 0, 3] = np.nan
    d_o = tensors.pop("d_o")
    run = DeviceRun(g, list(tensors.values()), d_o)
    for arch in (Arch.SM80, Arch.SM90):
        found = run.launch(*first_rows(arch, p))
        run.compare(found, list(tensors.values()))
        dq = found.dq[0, :, 0].astype(np.float32)
        assert np.isnan(dq[71]).all() and (not masks or np.isfinite(dq[:71]).all())


@every_type
@every_head
def test_nan_beside_many_blocks(d_head: int, dtype: str) -> None:
    """Tiles that one key or query spoils are computed again, of several heads and sequences; adding
    to gradients, they add once."""
    p = AttentionProblem(
        3, 400, 410, 4, 2, **heads_of(d_head), dtype=dtype, causal=True,
        seqused_q=(400, 300, 129), seqused_k=(410, 290, 130),
    )  # fmt: skip
    g = GradientProblem(p, wide=(True,) * 3, adds=("dq", "dk", "dv"), wanted=("dq", "dk", "dv"))
    q, k, v = (x.copy() for x in make_inputs(p))
    d_o = random_d_o(g)
    q[0, 201, 1, 5] = d_o[1, 150, 2, 0] = k[1, 160, 0, d_head - 1] = v[0, 333, 1, 7] = np.nan
    for arch in (Arch.SM80, Arch.SM90):
        run = DeviceRun(g, [q, k, v], d_o)
        run.compare(run.launch(*first_rows(arch, p)), [q, k, v])


@every_type
def test_rows_that_see_no_key(dtype: str) -> None:
    """Their O is 0 and their LSE -infinity, whatever dO and dLSE are."""
    p = AttentionProblem(
        1, 140, 57, 4, 2, 64, dtype, causal=True, sinks=(0.0, 1.0, np.inf, -np.inf)
    )
    g = GradientProblem(p, has_d_lse=True)
    d_o = random_d_o(g)
    d_o[0, :83] = np.inf
    run = DeviceRun(g, None, d_o)
    run.d_lse[0, :, :83] = -np.inf
    found = run.launch()
    assert (found.dq[0, :83] == 0).all()
    assert all(np.isfinite(x.astype(np.float32)).all() for x in found)


@every_type
def test_sinks_of_any_size(dtype: str) -> None:
    sinks = (np.inf, -np.inf, 300.0, -300.0, 88.0, 3e38, -3e38, 0.0)
    p = AttentionProblem(1, 70, 90, 8, 2, 64, dtype, sinks=sinks)
    for has_d_lse in (False, True):
        check(GradientProblem(p, has_d_lse))


@every_type
@every_head
def test_a_heavy_sink_leaves_dlse_finite(d_head: int, dtype: str) -> None:
    """Up to a weight of e^64 times the keys' the gradient of LSE counts in full."""
    p = AttentionProblem(1, 1, 1, 4, 4, **heads_of(d_head), dtype=dtype, softmax_scale=1.0,
                         sinks=(60.0, 80.0, 1000.0, np.inf))  # fmt: skip
    inputs = [np.zeros_like(x) for x in make_inputs(p)]
    inputs[0][...] = 1
    run = DeviceRun(GradientProblem(p, has_d_lse=True), inputs)
    run.d_lse[...] = 100
    found = run.launch()
    assert found.dk[0, 0, 0].astype(np.float32) == pytest.approx(100, rel=1e-2)
    assert np.isfinite(found.dk.astype(np.float32)).all() and (found.dk[0, 0, 2:] == 0).all()
    assert np.isfinite(found.d_sinks).all()


@every_type
def test_huge_scores(dtype: str) -> None:
    """Scores in the thousands: P is 0 or 1, and fp32 scores have lost digits."""
    p = AttentionProblem(1, 140, 150, 2, 1, 64, dtype, causal=True, softmax_scale=300.0)
    for g in (GradientProblem(p), GradientProblem(replace(p, softcap=20.0))):
        found = DeviceRun(g).launch()
        assert all(np.isfinite(x.astype(np.float32)).all() for x in found[:3])
    check(GradientProblem(replace(p, softmax_scale=8.0)))


def test_gradients_beyond_fp16_are_infinite() -> None:
    """dV of a key is the sum of dO of all queries; of fp32 it is finite."""
    p = AttentionProblem(1, 8, 1, 1, 1, 64, "float16")
    d_o = np.zeros(p.o_shape, np.float16)
    d_o[..., 0], d_o[..., 1], d_o[..., 2] = 20000, -20000, 8000
    found = DeviceRun(GradientProblem(p), None, d_o).launch()
    assert found.dv.ravel()[:3].tolist() == [np.inf, -np.inf, 64000]
    wide = DeviceRun(GradientProblem(p, wide=(True,) * 3), None, d_o).launch()
    assert wide.dv.ravel()[:3] == pytest.approx([160000, -160000, 64000])


def test_sums_over_many_queries_and_keys() -> None:
    check(GradientProblem(AttentionProblem(1, 20000, 3, 1, 1, 64, "bfloat16"), has_d_lse=True))
    check(GradientProblem(AttentionProblem(1, 3, 20000, 1, 1, 64, "bfloat16"), has_d_lse=True))
