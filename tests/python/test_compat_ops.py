"""flashattn.compat: torch.ops.flash_attn_3.fwd, as FlashAttention-3's extension defines it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect

import flashattn.compat
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from compat_support import int32, normal, tensor  # noqa: E402
from flashattn.compat import fa3  # noqa: E402

if importlib.util.find_spec("flash_attn_3"):
    pytest.skip("flash-attn is installed", allow_module_level=True)


@pytest.fixture
def fwd() -> object:
    flashattn.compat.install(fa2=False, fa3=True)
    importlib.import_module("flash_attn_3._C")
    flashattn.compat.uninstall()
    return torch.ops.flash_attn_3.fwd


@pytest.fixture
def qkv() -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    return [tensor(normal(rng, (2, 9, 4, 16), "float32")) for _ in range(3)]


def test_the_schema_has_the_arguments_of_the_function(fwd: object) -> None:
    from flashattn.compat import _fa3_ops

    arguments = inspect.signature(_fa3_ops._fwd).parameters.values()
    schema = fwd.default._schema.arguments
    assert [x.name for x in schema] == [x.name for x in arguments]
    assert [x.default_value for x in schema[3:]] == [x.default for x in list(arguments)[3:]]


def test_padded(fwd: object, qkv: list[torch.Tensor]) -> None:
    o, lse, *rest = fwd(*qkv, is_causal=True, window_size_left=4, softcap=20.0)
    expected = fa3.flash_attn_func(
        *qkv, causal=True, window_size=(4, -1), softcap=20.0, return_attn_probs=True
    )
    assert torch.equal(o, expected[0]) and torch.equal(lse, expected[1])
    assert [x.numel() for x in rest] == [0, 0]
    out = torch.zeros(2, 9, 4, 16)
    assert torch.equal(fwd(*qkv, out=out)[0], out)
    assert torch.equal(out, fa3.flash_attn_func(*qkv))


def test_ragged(fwd: object, qkv: list[torch.Tensor]) -> None:
    flat, ends = [x.flatten(0, 1) for x in qkv], int32(0, 5, 18)
    used = int32(4, 0)
    o, lse, *_ = fwd(
        *flat, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=13, max_seqlen_k=13,
        seqused_k=used,
    )  # fmt: skip
    expected = fa3.flash_attn_varlen_func(
        *flat, ends, ends, 13, 13, seqused_k=used, return_attn_probs=True
    )
    assert torch.equal(o, expected[0]) and torch.equal(lse, expected[1])


def test_a_cache_with_new_tokens(fwd: object, qkv: list[torch.Tensor]) -> None:
    q, *caches = qkv
    again = [x.clone() for x in caches]
    new = [x[:, :2].clone() for x in (q, *caches)]
    turns, lengths = torch.ones(9, 4), int32(3, 7)
    o, *_ = fwd(
        new[0], *caches, *new[1:], rotary_cos=turns, rotary_sin=turns, seqused_k=lengths,
        is_causal=True,
    )  # fmt: skip
    expected = fa3.flash_attn_with_kvcache(
        new[0], *again, *new[1:], rotary_cos=turns, rotary_sin=turns, cache_seqlens=lengths,
        causal=True, rotary_interleaved=False,
    )  # fmt: skip
    assert torch.equal(o, expected) and all(map(torch.equal, caches, again))


def test_refusals(fwd: object, qkv: list[torch.Tensor]) -> None:
    with pytest.raises(NotImplementedError, match="seqused_q is given with an argument of a cache"):
        fwd(*qkv, seqused_q=int32(1, 2), kv_batch_idx=int32(0, 1))
    with pytest.raises(NotImplementedError, match="q_v is given"):
        fwd(*qkv, q_v=qkv[0])
    qkv[0].requires_grad_()
    with pytest.raises(NotImplementedError, match="q requires a gradient"):
        fwd(*qkv, kv_batch_idx=int32(0, 1))
    fwd(*qkv, is_causal=True)[0].square().sum().backward()
    assert qkv[0].grad.any()
