"""flashattn.compat under torch.compile: each function is one graph, with the results of eager code,
and caches are written to in the same places."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
from compat_support import int32  # noqa: E402
from flashattn.compat import fa2, fa3  # noqa: E402

Tensor = torch.Tensor
BATCH, SEQLEN, HEADS, D_HEAD = 2, 9, 4, 32
ENDS = int32(0, 4, BATCH * SEQLEN)
TABLE = int32(7, 2, 0, 5, 1, 3, 6, 4).view(2, 4)
LENGTHS = int32(5, 20)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _flat(*tensors: Tensor) -> list[Tensor]:
    return [x.flatten(0, 1) for x in tensors]


def _padded(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    return fa2.flash_attn_func(q, k, v, 0.0, None, True, (5, 0), return_attn_probs=True)


def _packed(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    return fa2.flash_attn_qkvpacked_func(torch.stack([q, k, v], dim=2), softcap=20.0)


def _ragged(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    return fa2.flash_attn_varlen_func(*_flat(q, k, v), ENDS, ENDS, 14, 14, causal=True)


def _used(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    return fa3.flash_attn_varlen_func(
        *_flat(q, k, v), ENDS, ENDS, 14, None, seqused_k=int32(3, 14), return_attn_probs=True
    )


def _e4m3(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    scale = torch.full((BATCH, HEADS), 0.5)
    return fa3.flash_attn_func(
        *(x.to(torch.float8_e4m3fn) for x in (q, k, v)), q_descale=scale, v_descale=scale
    )


def _merged(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    parts = [
        fa3.flash_attn_func(q, k[:, keys], v[:, keys], return_attn_probs=True)
        for keys in (slice(0, 4), slice(4, None))
    ]
    out, lse = (torch.stack(x) for x in zip(*parts))
    return fa3.flash_attn_combine(out, lse.transpose(-1, -2))


def _new_tokens(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    turns = torch.linspace(0, 1, 64 * 16).view(64, 16)
    return fa2.flash_attn_with_kvcache(
        q, *caches, k, v, turns.cos(), turns.sin(), LENGTHS, None, None, TABLE, causal=True,
        return_softmax_lse=True,
    )  # fmt: skip


def _ragged_new_tokens(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    q, k, v = _flat(q, k, v)
    return fa3.flash_attn_with_kvcache(
        q, *caches, k, v, cache_seqlens=LENGTHS, page_table=TABLE, cu_seqlens_q=ENDS,
        cu_seqlens_k_new=ENDS, max_seqlen_q=14, causal=True,
    )  # fmt: skip


def _slots(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    return fa2.flash_attn_with_kvcache(
        q, *caches, cache_seqlens=12, cache_batch_idx=int32(6, 1), cache_leftpad=int32(0, 3)
    )


def _operator(q: Tensor, k: Tensor, v: Tensor, *caches: Tensor) -> Any:
    slots, out = (x[:BATCH] for x in caches), torch.empty_like(q)
    torch.ops.flash_attn_3.fwd(
        q, *slots, k, v, out=out, seqused_k=int32(5, 3), is_causal=True, softcap=20.0
    )
    return out


FUNCTIONS = (
    _padded, _packed, _ragged, _used, _e4m3, _merged, _new_tokens, _ragged_new_tokens, _slots,
    _operator,
)  # fmt: skip


def _tensors() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(BATCH, SEQLEN, HEADS, D_HEAD)] * 3 + [(8, 16, HEADS, D_HEAD)] * 2
    return [torch.randn(shape) for shape in shapes]


def _assert_equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__.strip("_"))
def test_compiles_in_one_graph(function: Callable) -> None:
    if function is _operator:
        if importlib.util.find_spec("flash_attn_3"):
            pytest.skip("flash-attn is installed")
        importlib.import_module("flashattn.compat._fa3_ops")  # as import flash_attn_3._C does
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    here, there = _tensors(), _tensors()
    _assert_equal(compiled(*there), function(*here))
    _assert_equal(there, here)


class Module(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fa3.flash_attn_func(q, k, v, causal=True)


def test_exports() -> None:
    q, k, v, *_ = _tensors()
    exported = torch.export.export(Module(), (q, k, v))
    assert torch.ops.flashattn.fwd.default in {node.target for node in exported.graph.nodes}
    assert torch.equal(exported.module()(q, k, v), Module()(q, k, v))


def test_longest_sequence_changes_without_compiling_again() -> None:
    def ragged(q: Tensor, ends: Tensor, longest: int) -> Tensor:
        return fa2.flash_attn_varlen_func(q, q, q, ends, ends, longest, longest, causal=True)

    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(ragged, fullgraph=True, dynamic=True, backend=counter)
    for longest in (4, 7, 12):
        q, ends = torch.randn(longest + 3, 2, 16), int32(0, longest, longest + 3)
        _assert_equal(compiled(q, ends, longest), ragged(q, ends, longest))
    assert counter.frame_count == 1


def test_new_tokens_without_room_are_refused_by_a_graph() -> None:
    q, k, v, *caches = _tensors()

    def append(*caches: Tensor) -> Tensor:
        return fa2.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=int32(16, 3))

    with pytest.raises(ValueError, match="new token 0 of sequence 0 would be its key 16"):
        torch.compile(append, fullgraph=True, backend="aot_eager")(*caches)


def test_rows_of_no_sequence_are_refused_in_a_graph() -> None:
    def ragged(q: Tensor) -> Tensor:
        return fa2.flash_attn_varlen_func(q, q, q, ENDS, ENDS, 14, 14)

    q = torch.randn(BATCH * SEQLEN + 3, HEADS, D_HEAD)
    assert not ragged(q)[-3:].any()
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        torch.compile(ragged, fullgraph=True, backend="aot_eager")(q)
