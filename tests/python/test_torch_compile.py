"""flashattn.torch_ops where torch does more than to call: compilers, exports, modes, transforms,
autocast. The operators keep what torch's own check of operators wants.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_calls  # noqa: E402
from flashattn import torch_ops  # noqa: E402
from problems import AttentionProblem, make_inputs  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_calls import Recorded, to_tensor  # noqa: E402

ops = torch.ops.flashattn
P = AttentionProblem(2, 9, 12, 4, 2, 32, causal=True)
CU_SEQLENS = torch.tensor([0, 4, 10], dtype=torch.int32)
TABLE = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
LENGTHS = torch.tensor([5, 8], dtype=torch.int32)
SCALES = torch.tensor([[0.5, 2.0], [1.0, 0.25]])
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
SLOPES = torch.tensor([0.5, 0.25, 0.0, 0.125])
MASK = torch.arange(9 * 12).reshape(9, 12) % 3 > 0
BACKENDS = ("eager", "aot_eager", "inductor")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _qkv(p: AttentionProblem = P) -> list[torch.Tensor]:
    return [to_tensor(x) for x in make_inputs(p)]


def _padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch_ops.flash_attn_func(q, k, v, causal=True, window_size=(5, 0), return_lse=True)


def _ragged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch_ops.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=CU_SEQLENS, cu_seqlens_k=CU_SEQLENS, max_seqlen_q=6, max_seqlen_k=6
    )


def _paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch_ops.flash_attn_func(q, k, v, page_table=TABLE, seqused_k=LENGTHS, causal=True)


def _e4m3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch_ops.flash_attn_func(q, k, v, k_descale=SCALES, v_descale=SCALES)


def _sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch_ops.flash_attn_func(q, k, v, sinks=SINKS, causal=True)


def _bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch_ops.flash_attn_func(q, k, v, alibi_slopes=SLOPES, attn_mask=MASK, causal=True)


def _factors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    numbers = torch.where(MASK, 0.5, -torch.inf)
    return torch_ops.flash_attn_func(q, k, v, attn_mask=numbers, mask_head_scale=SLOPES)


def _into(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    out, lse = torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1])
    torch_ops.flash_attn_func(q, k, v, out=out, lse=lse)
    return torch_ops.flash_attn_func(out, k, v), lse


def _merged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    parts = [
        torch_ops.flash_attn_func(q, k[:, keys], v[:, keys], return_lse=True)
        for keys in (slice(0, 5), slice(5, None))
    ]
    return torch_ops.flash_combine(*(torch.stack(x) for x in zip(*parts)), sinks=SINKS)


def _inputs(name: str) -> list[torch.Tensor]:
    if name == "ragged":
        return [torch.randn(10, 4, 32), torch.randn(10, 2, 32), torch.randn(10, 2, 32)]
    if name == "paged":
        return [torch.randn(2, 3, 4, 32), torch.randn(5, 4, 2, 32), torch.randn(5, 4, 2, 32)]
    q, k, v = _qkv()
    if name == "e4m3":
        return [q, k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)]
    return [q, k, v]


FUNCTIONS = {
    "padded": _padded, "ragged": _ragged, "paged": _paged, "e4m3": _e4m3, "sinks": _sinks,
    "bias": _bias, "factors": _factors, "into": _into, "merged": _merged,
}  # fmt: skip
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return all(torch.equal(x, y) for x, y in zip(a, b))


# ---- Compilers ----


@every_function
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiles_in_one_graph(name: str, backend: str) -> None:
    function, inputs = FUNCTIONS[name], _inputs(name)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    assert _equal(compiled(*inputs), function(*inputs))


def test_numbers_as_scales_compile() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch_ops.flash_attn_func(q, k, v, k_descale=0.5, v_descale=2)

    inputs = _inputs("e4m3")
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), function(*inputs))


def test_lengths_change_without_compiling_again() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(_padded, fullgraph=True, dynamic=True, backend=counter)
    for seqlen in (5, 6, 17, 40):
        q = torch.randn(2, seqlen, 4, 32)
        k, v = torch.randn(2, 2, seqlen + 3, 2, 32)
        assert _equal(compiled(q, k, v), _padded(q, k, v))
    assert counter.frame_count == 1


def test_longest_sequence_changes_without_compiling_again() -> None:
    def ragged(q: torch.Tensor, ends: torch.Tensor, longest: int) -> torch.Tensor:
        return torch_ops.flash_attn_varlen_func(
            q, q, q, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=longest,
            max_seqlen_k=longest,
        )  # fmt: skip

    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(ragged, fullgraph=True, dynamic=True, backend=counter)
    for longest in (4, 7, 12):
        ends = torch.tensor([0, longest, longest + 3], dtype=torch.int32)
        q = torch.randn(longest + 3, 2, 16)
        assert torch.equal(compiled(q, ends, longest), ragged(q, ends, longest))
    assert counter.frame_count == 1


def test_strides_reach_the_call_as_they_are() -> None:
    """A compiler may store what it computes in any order. K and V keep theirs."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) + 1 for x in (q, k, v))
        return torch_ops.flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))

    inputs = _qkv()
    assert torch.equal(torch.compile(function, fullgraph=True)(*inputs), function(*inputs))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_of_pages_are_refused_while_compiling(backend: str) -> None:
    q, k, v = _inputs("paged")
    q.requires_grad_()
    compiled = torch.compile(_paged, fullgraph=True, backend=backend)
    with pytest.raises(Exception, match="q requires a gradient, and there is none with K and V in"):
        compiled(q, k, v)
    with torch.no_grad():
        assert _equal(compiled(q, k, v), _paged(q, k, v))
    partly = torch.compile(_paged, backend=backend)
    with pytest.raises(NotImplementedError, match="q requires a gradient"):
        partly(q, k, v)


# ---- Exports ----


class Module(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return self._function(q, k, v)


@pytest.mark.parametrize("strict", [True, False])
def test_exports(strict: bool) -> None:
    inputs = tuple(_qkv())
    seqlen = torch.export.Dim("seqlen", min=2, max=1000)
    exported = torch.export.export(
        Module(_padded), inputs, dynamic_shapes=({1: seqlen}, None, None), strict=strict
    )
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert ops.fwd.lse in targets
    longer = torch.randn(2, 12, 4, 32), *inputs[1:]
    assert _equal(exported.module()(*longer), _padded(*longer))


def test_is_traced() -> None:
    q, k, v = _qkv()
    traced = torch.jit.trace(lambda q, k, v: torch_ops.flash_attn_func(q, k, v), (q, k, v))
    assert torch.equal(traced(2 * q, k, v), torch_ops.flash_attn_func(2 * q, k, v))


# ---- torch's own check ----


@pytest.mark.parametrize("overload", ["default", "lse", "out"])
@pytest.mark.parametrize("operator", ["fwd", "varlen_fwd", "decode", "combine"])
def test_operators_are_what_they_claim(operator: str, overload: str) -> None:
    inputs = _inputs({"varlen_fwd": "ragged", "decode": "paged"}.get(operator, "padded"))
    q, k, v = (x.half() for x in inputs)
    arguments = {
        "fwd": (q, k, v, 0.2, True),
        "varlen_fwd": (q, k, v, CU_SEQLENS, CU_SEQLENS, 6, 6),
        "decode": (q, k, v, LENGTHS, TABLE),
        "combine": (torch.stack([q, q]), torch.randn(2, 2, 4, 9)),
    }[operator]
    results = {"out_dtype": torch.float32}
    if overload == "out":
        like = q if operator != "combine" else arguments[0][0]
        lse = torch.empty(4, 10) if operator == "varlen_fwd" else torch.empty(2, 4, like.shape[1])
        results = {"out": torch.empty_like(like), "lse": lse}
    found = torch.library.opcheck(getattr(getattr(ops, operator), overload), arguments, results)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("operator", ["fwd", "varlen_fwd", "decode"])
def test_operators_with_a_bias_are_what_they_claim(operator: str) -> None:
    q, k, v = _inputs({"varlen_fwd": "ragged", "decode": "paged"}.get(operator, "padded"))
    options = (None, True, -1, -1, 0.0, False, None, None, None, None)
    bits = torch.ones(q.shape[-3], 1, dtype=torch.int32)
    arguments = {
        "fwd": (q, k, v, *options, None, SLOPES, MASK),
        "varlen_fwd": (q, k, v, CU_SEQLENS, CU_SEQLENS, 6, 6, *(None,) * 4, *options, None, SLOPES),
        "decode": (q, k, v, LENGTHS, TABLE, None, None, None, None, *options, None, None, bits, 3),
    }[operator]
    found = torch.library.opcheck(getattr(ops, operator).default, arguments)
    assert set(found.values()) == {"SUCCESS"}


# ---- Tensors without data, modes, transforms ----


def test_tensors_without_data() -> None:
    q, k, v = _qkv()
    o, lse = _padded(*(x.to("meta") for x in (q, k, v)))
    assert o.is_meta and o.shape == q.shape and lse.shape == (2, 4, 9)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (q, k, v)]
        o = torch_ops.flash_attn_func(*fake, out_dtype=torch.float16)
    assert o.shape == q.shape and o.dtype == torch.float16 and o.is_contiguous()


def test_watchers_see_the_operator() -> None:
    q, k, v = _qkv()
    expected = torch_ops.flash_attn_func(q, k, v)
    with Recorded() as recorded:
        assert torch.equal(torch_ops.flash_attn_func(q, k, v), expected)
    assert recorded.operators == ["fwd.default"]
    graph = torch.fx.experimental.proxy_tensor.make_fx(_padded)(q, k, v)
    assert ops.fwd.lse in [node.target for node in graph.graph.nodes]


def test_is_mapped_over_a_batch() -> None:
    q, k, v = _qkv()
    mapped = torch.func.vmap(lambda q: torch_ops.flash_attn_func(q, k, v))(torch.stack([q, 2 * q]))
    assert torch.equal(mapped[1], torch_ops.flash_attn_func(2 * q, k, v))


def test_negated_tensors() -> None:
    """The values of a negated view, such as the imaginary part of a conjugate, are the negatives of
    what its memory holds."""
    q, k, v = _qkv()
    negated = torch._neg_view(-q)
    assert negated.is_neg() and torch.equal(negated, q)
    expected = torch_ops.flash_attn_func(q, k, v)
    assert torch.equal(torch_ops.flash_attn_func(negated, k, v), expected)


def test_parameters_and_inference() -> None:
    q, k, v = _qkv()
    expected = torch_ops.flash_attn_func(q, k, v)
    with torch.no_grad():
        assert torch.equal(torch_ops.flash_attn_func(torch.nn.Parameter(q), k, v), expected)
    with torch.inference_mode():
        assert torch.equal(torch_ops.flash_attn_func(q * 1, k, v), expected)


# ---- Autocast ----


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_gives_its_type(compiled: bool) -> None:
    q, k, v = _qkv()
    function = torch.compile(_padded, fullgraph=True, backend="aot_eager") if compiled else _padded
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, lse = function(q, k, v)
        out = torch.empty_like(q)
        torch_ops.flash_attn_func(q, k, v, out=out)
    expected, expected_lse = _padded(*(x.bfloat16() for x in (q, k, v)))
    assert o.dtype == torch.bfloat16 and torch.equal(o, expected)
    assert lse.dtype == torch.float32 and torch.equal(lse, expected_lse)
    assert out.dtype == torch.float32


def test_autocast_leaves_e4m3_and_partial_results_alone() -> None:
    q, k, v = _qkv()
    k, v = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = torch_ops.flash_attn_func(q, k, v)
        merged = torch_ops.flash_combine(torch.stack([q, q]), torch.zeros(2, 2, 4, 9))
    assert torch.equal(o, torch_ops.flash_attn_func(q.bfloat16(), k, v))
    assert merged.dtype == torch.float32 and math.isclose(float((merged - q).abs().max()), 0)


# ---- In a model ----


def test_projections_around_it_compile() -> None:
    """Views of one projection are read in place."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            qkv = self.qkv(x).view(*x.shape[:-1], 3, 4, 16)
            o = torch_ops.flash_attn_func(*qkv.unbind(2), causal=True)
            return self.out(o.flatten(2))

    model, x = Attention().eval(), torch.randn(2, 20, 64)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True)(x)
        q, k, v = (y.transpose(1, 2) for y in model.qkv(x).view(2, 20, 3, 4, 16).unbind(2))
        reference = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        reference = model.out(reference.transpose(1, 2).flatten(2))
    torch.testing.assert_close(expected, reference)
    torch.testing.assert_close(compiled, reference)
    model(x).square().sum().backward()
    assert model.qkv.weight.grad.any()


def test_ways_of_calling_agree() -> None:
    q, k, v = _qkv()
    options = torch_calls.options_of(P)
    assert torch.equal(
        torch_calls.call(q, k, v, "function", options), ops.fwd(q, k, v, causal=True)
    )
