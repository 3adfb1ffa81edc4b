"""The peers of `bench` compute the same attention, or say that they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flashattn import DType, oracle
from flashattn.cli import bench_cpu_peers
from flashattn.cli.timing import Contender
from memory import dtype_of

NAMES = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}
PEERS = bench_cpu_peers.contenders(list(DType))
every_peer = pytest.mark.parametrize("peer", PEERS, ids=[peer.label for peer in PEERS])


def _inputs(peer: Contender, seqlen_q: int = 40, n_heads_kv: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (2, seqlen_q, 4, 16), *((2, 40, n_heads_kv, 16),) * 2
    return [rng.standard_normal(shape).astype(dtype_of(NAMES[peer.dtype])) for shape in shapes]


def _options(**changes: Any) -> dict[str, Any]:
    plain = {
        "causal": False,
        "window_size": (-1, -1),
        "attention_chunk": 0,
        "softcap": 0.0,
        "softmax_scale": None,
    }
    return {**plain, **changes}


@every_peer
@pytest.mark.parametrize("options", [_options(), _options(causal=True, softmax_scale=0.3)])
def test_peer_agrees_with_the_oracle(peer: Contender, options: dict[str, Any]) -> None:
    _check(peer, _inputs(peer), options)


@every_peer
@pytest.mark.parametrize("seqlen_q, causal", [(1, False), (40, True)])
def test_peer_serves_grouped_heads(peer: Contender, seqlen_q: int, causal: bool) -> None:
    _check(peer, _inputs(peer, seqlen_q, n_heads_kv=2), _options(causal=causal))


@every_peer
def test_peer_computes_a_narrow_v_or_declines(peer: Contender) -> None:
    q, k, v = _inputs(peer)
    inputs = [q, k, np.ascontiguousarray(v[..., :8])]
    if bench_cpu_peers.make_call(peer.label, *inputs, _options()) is None:
        assert peer.label.startswith("onnxruntime")
    else:
        _check(peer, inputs, _options())


def _check(peer: Contender, inputs: list[np.ndarray], options: dict[str, Any]) -> None:
    """Checks twice, because a peer may keep state from call to call."""
    call = bench_cpu_peers.make_call(peer.label, *inputs, options)
    expected, _ = oracle.attention(*inputs, **options)
    for _ in range(2):
        o = call()
        o = np.asarray(o.float() if hasattr(o, "float") else o)
        assert np.abs(o - expected).max() < (1e-5 if peer.dtype == DType.FP32 else 0.05)


@every_peer
@pytest.mark.parametrize(
    "changes", [{"window_size": (5, 0)}, {"softcap": 2.0}, {"attention_chunk": 7}]
)
def test_peer_computes_or_declines(peer: Contender, changes: dict[str, Any]) -> None:
    q, k, v = _inputs(peer)
    call = bench_cpu_peers.make_call(peer.label, q, k, v, _options(**changes))
    if call is not None:
        expected, _ = oracle.attention(q, k, v, **_options(**changes))
        assert np.abs(np.asarray(call()) - expected).max() < 1e-5
