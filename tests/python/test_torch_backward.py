"""Gradients that torch records of attention: those of flashattn.flash_attn_backward bit for bit,
whatever the way of the call, and those of the formulas; compilers, transforms, hooks, refusals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flashattn
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_calls  # noqa: E402
import torch_gradients  # noqa: E402
from bias_cases import BiasCase  # noqa: E402
from flashattn import _attention, torch_ops  # noqa: E402
from flashattn.compat import fa2  # noqa: E402
from gradient_problems import GradientProblem  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from memory import arrange  # noqa: E402
from problems import AttentionProblem, make_inputs  # noqa: E402
from strategies import gradient_problems, random_problems  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_calls import WAYS, Recorded, to_array, to_tensor  # noqa: E402
from torch_gradients import assert_close, gradients, leaves  # noqa: E402

ops = torch.ops.flashattn
every_way = pytest.mark.parametrize("way", WAYS)
P = AttentionProblem(2, 7, 9, 4, 2, 16, causal=True)
SINKS = (0.5, 3.0, -2.0, 1.0)
PROBLEMS = {
    "causal": P,
    "bfloat16": replace(P, dtype="bfloat16", window_size=(3, 1)),
    "wide O": replace(P, dtype="float16", o_dtype="float32"),
    "softcap": replace(P, softcap=2.0, softmax_scale=0.4, causal=False),
    "transposed": replace(P, layouts=("heads_first",) * 4),
    "sinks": replace(P, sinks=SINKS),
    "narrow v": replace(P, d_head_v=8),
    "chunks": replace(P, attention_chunk=4),
    "ragged": replace(P, cu_seqlens_q=(0, 7, 9), cu_seqlens_k=(0, 4, 13)),
    "ragged, sinks": replace(P, cu_seqlens_q=(0, 7, 9), cu_seqlens_k=(0, 9, 9), sinks=SINKS),
    "ragged queries, keys in use": replace(P, cu_seqlens_q=(0, 2, 9), seqused_k=(9, 3)),
    "queries in use": replace(P, seqused_q=(7, 2), seqused_k=(0, 9)),
    "padding": replace(P, leftpad_k=(3, 0)),
    "slopes and mask": replace(P, bias=BiasCase(slopes=2, kind="float32", repeats="h")),
    "mask with factors": replace(P, bias=BiasCase(kind="float32", repeats="bh", factors=True)),
    "bits": replace(P, bias=BiasCase(kind="bits")),
    "no queries": replace(P, seqlen_q=0),
    "no keys": replace(P, seqlen_k=0),
}
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _inputs(p: AttentionProblem) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Returns q, k, v and sinks, if there are any, and the other arguments."""
    options = torch_calls.options_of(p)
    tensors = [to_tensor(x) for x in make_inputs(p)]
    sinks = options.pop("sinks")
    if "rng_state" in options:
        options["rng_state"] = torch.from_numpy(np.array(options["rng_state"], np.uint64))
    return [*tensors, *([] if sinks is None else [sinks])], options


def _attend(tensors: list[torch.Tensor], options: dict[str, Any], way: str = "function") -> Any:
    q, k, v, *sinks = tensors
    return torch_calls.call(q, k, v, way, {**options, "sinks": sinks[0] if sinks else None})


def _gradients_of_results(x: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    d_o, d_lse = torch.randn(x.shape), torch.randn(lse.shape)
    return d_o.to(x.dtype), torch.where(lse == -torch.inf, 0.0, d_lse)


def _qkv() -> list[torch.Tensor]:
    return [to_tensor(x) for x in make_inputs(P)]


def _double(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return leaves(*(x.double() for x in tensors))


def _loss(o: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    of_o = torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view(o.shape)
    of_lse = torch.linspace(0, 1, lse.numel(), dtype=o.dtype).view(lse.shape)
    return (o * of_o).sum() + (lse * of_lse).sum() + (o**2).sum()


def _both(*tensors: torch.Tensor, **options: Any) -> Any:
    return torch_ops.flash_attn_func(*tensors, return_lse=True, **options)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _loss(*_both(q, k, v, causal=True))


# ---- Values ----


@every_way
@every_problem
def test_gradients_are_those_of_the_library(p: AttentionProblem, way: str) -> None:
    tensors, options = _inputs(p)
    with torch.no_grad():
        o, lse = _attend(tensors, {**options, "return_lse": True})
    d_o, d_lse = _gradients_of_results(o, lse)
    q, k, v, *sinks = tensors
    problem = {**options, "sinks": sinks[0] if sinks else None, "out_dtype": None}
    for of_lse in (None, d_lse):
        expected = flashattn.flash_attn_backward(d_o, q, k, v, o, lse, d_lse=of_lse, **problem)
        derived = leaves(*tensors)
        found = _attend(derived, {**options, "return_lse": of_lse is not None}, way)
        if of_lse is None:
            assert torch.equal(found, o) or p.seqused_q is not None  # which leaves rows as they are
            found.backward(d_o)
        else:
            torch.autograd.backward(found, (d_o, d_lse))
        for x, right in zip(derived, expected):
            assert x.grad.dtype == x.dtype and torch.equal(x.grad, right.to(x.dtype))


@settings(random_problems, max_examples=200)
@given(gradient_problems(), st.sampled_from(WAYS))
def test_random_gradients_are_those_of_the_library(g: GradientProblem, way: str) -> None:
    """Those of float32 and 16 bits, in any layout, with d_o in any layout."""
    p = g.forward
    tensors, options = _inputs(p)
    with torch.no_grad():
        o, lse = _attend(tensors, {**options, "return_lse": True})
    d_o, d_lse = _gradients_of_results(o, lse)
    d_o = to_tensor(arrange(to_array(d_o), g.layouts[0]))
    q, k, v, *sinks = tensors
    problem = {**options, "sinks": sinks[0] if sinks else None, "out_dtype": None}
    d_lse = d_lse if g.has_d_lse else None
    expected = flashattn.flash_attn_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **problem)
    derived = [x.detach().requires_grad_() for x in tensors]
    found = _attend(derived, {**options, "return_lse": True}, way)
    results = list(zip(found, (d_o, d_lse)))[: 2 if g.has_d_lse else 1]
    torch.autograd.backward(*zip(*results))
    for name, x, right in zip(("dq", "dk", "dv", "d_sinks"), derived, expected):
        last = None if name in ("dq", "d_sinks") else p.cu_seqlens_k  # behind it there is nothing
        n_tokens = x.shape[0] if last is None else last[-1]
        assert torch.equal(x.grad[:n_tokens], right.to(x.dtype)[:n_tokens]), name


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"window_size": (2, 1), "softcap": 3.0},
        {"softmax_scale": 0.7, "attn_mask": torch.rand(7, 9, generator=torch.manual_seed(3)) > 0.2},
        {"attn_mask": torch.linspace(-2, 2, 4 * 63).view(4, 7, 9), "causal": True},
    ],
    ids=["causal", "window", "bool mask", "numbers"],
)
def test_gradients_are_those_of_the_formulas(options: dict[str, Any]) -> None:
    inputs = [*_qkv(), torch.tensor(SINKS)]
    for n in (3, 4):
        found, exact = leaves(*inputs[:n]), _double(inputs[:n])

        def attend(*x: torch.Tensor, function: Any = _both) -> torch.Tensor:
            return _loss(*function(*x[:3], sinks=x[3] if len(x) == 4 else None, **options))

        expected = gradients(lambda *x: attend(*x, function=torch_gradients.attention), exact)
        assert_close(gradients(attend, found), expected)


def test_gradient_is_that_of_central_differences() -> None:
    inputs = leaves(*_qkv(), torch.tensor(SINKS))
    with pytest.warns(UserWarning, match="not a double precision"):
        torch.autograd.gradcheck(
            lambda q, k, v, sinks: _both(q, k, v, sinks=sinks, causal=True),
            inputs,
            eps=1e-2,
            atol=2e-3,
            rtol=1e-2,
        )


def test_gradient_of_lse_alone() -> None:
    q, k, v = _qkv()
    *found, of_v = gradients(lambda *x: _both(*x)[1].sum(), leaves(q, k, v))
    expected = gradients(
        lambda *x: torch_gradients.attention(*x, v.double())[1].sum(), _double([q, k])
    )
    assert_close(found, expected)
    assert not of_v.any()


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks"])
def test_only_what_is_wanted_is_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashattn._torch import backward

    asked: list[dict[str, Any]] = []
    compute = backward.flash_attn_backward
    monkeypatch.setattr(
        backward, "flash_attn_backward", lambda *x, **y: asked.append(y) or compute(*x, **y)
    )
    tensors = dict(zip(("q", "k", "v", "sinks"), (*_qkv(), torch.tensor(SINKS))))
    tensors[name].requires_grad_()
    torch_ops.flash_attn_func(**tensors).sum().backward()
    of = {"q": "dq", "k": "dk", "v": "dv", "sinks": "d_sinks"}
    assert {n for n in of.values() if asked[0][n] is not False} == {of[name]}
    assert [n for n, x in tensors.items() if x.grad is not None] == [name]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_sinks_of_other_types(dtype: torch.dtype) -> None:
    qkv, sinks = _qkv(), torch.tensor(SINKS)
    expected = gradients(lambda s: torch_ops.flash_attn_func(*qkv, sinks=s).sum(), leaves(sinks))
    found = gradients(
        lambda s: torch_ops.flash_attn_func(*qkv, sinks=s).sum(), leaves(sinks.to(dtype))
    )
    assert found[0].dtype == dtype and torch.equal(found[0], expected[0].to(dtype))


# ---- Layouts ----


def test_expanded_and_packed_tensors() -> None:
    qkv = torch.randn(2, 7, 3, 4, 16)
    packed, apart = leaves(qkv)[0], leaves(*(x.contiguous() for x in qkv.unbind(2)))
    _causal(*packed.unbind(2)).backward()
    _causal(*apart).backward()
    assert torch.equal(packed.grad, torch.stack([x.grad for x in apart], 2))
    k = torch.randn(1, 7, 1, 16)
    one, repeated = leaves(k, k.expand(2, 7, 4, 16))
    _causal(packed[:, :, 0], one.expand(2, 7, 4, 16), packed[:, :, 2]).backward()
    _causal(packed[:, :, 0], repeated, packed[:, :, 2]).backward()
    assert_close([one.grad], [repeated.grad.sum((0, 2), keepdim=True)])


@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_of_every_layout_of_results(ragged: bool) -> None:
    """That of a sum is one number everywhere; others have rows that are not contiguous."""
    p = PROBLEMS["ragged" if ragged else "causal"]
    tensors, options = _inputs(p)
    inputs = leaves(*tensors)
    o, lse = _attend(inputs, {**options, "return_lse": True})
    shape = o.shape
    for d_o in (
        torch.tensor(0.5).expand(shape),
        torch.randn(*shape, 2)[..., 0],
        torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))),
        torch.randn(shape[-1]).expand(shape),
    ):
        for d_lse in (torch.tensor(0.25).expand(lse.shape), torch.randn(*lse.shape, 2)[..., 1]):
            found, right = (
                torch.autograd.grad((o, lse), inputs, (x, y), retain_graph=True)
                for x, y in ((d_o, d_lse), (d_o.contiguous(), d_lse.contiguous()))
            )
            assert all(torch.equal(x, y) for x, y in zip(found, right))


# ---- What is recorded ----


def test_nothing_is_recorded_without_gradients() -> None:
    q, k, v = leaves(*_qkv())
    with Recorded() as recorded:
        with torch.no_grad():
            assert not torch_ops.flash_attn_func(q, k, v).requires_grad
        with torch.inference_mode():
            assert not torch_ops.flash_attn_func(q, k, v).requires_grad
        assert not torch_ops.flash_attn_func(q.detach(), k.detach(), v.detach()).requires_grad
        assert set(recorded.operators) == {"fwd.default"}
        torch_ops.flash_attn_func(q, k, v).sum().backward()
    assert recorded.operators[3:] == ["fwd.lse", "bwd.default"]


def test_saved_tensors_go_through_hooks_and_are_guarded() -> None:
    q, k, v = leaves(*_qkv())
    lengths = torch.tensor([7, 3], dtype=torch.int32)
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        o = torch_ops.flash_attn_func(q, k, v, seqused_k=lengths)
    assert {x.data_ptr() for x in packed} >= {
        x.data_ptr() for x in (q, k, v, o, lengths)
    } and len(packed) == 6
    o = torch_ops.flash_attn_func(q, k, v, seqused_k=lengths)
    lengths += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()
    o = torch_ops.flash_attn_func(q, k, v)
    o.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        o.sum().backward()


def test_gradients_add_up_and_are_deterministic() -> None:
    inputs = leaves(*_qkv())
    first = gradients(_causal, inputs)
    for _ in range(2):
        _causal(*inputs).backward()
    assert all(torch.equal(x.grad, 2 * y) for x, y in zip(inputs, first))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(use_reentrant: bool) -> None:
    inputs = leaves(*_qkv())
    expected = gradients(_causal, inputs)
    checkpoint(_causal, *inputs, use_reentrant=use_reentrant).backward()
    assert all(torch.equal(x.grad, y) for x, y in zip(inputs, expected))


def test_autocast_derives_in_its_type() -> None:
    inputs = leaves(*_qkv())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = torch_ops.flash_attn_func(*inputs, causal=True)
    assert o.dtype == torch.bfloat16
    o.float().square().sum().backward()
    cast = [x.detach().bfloat16().requires_grad_() for x in inputs]
    torch_ops.flash_attn_func(*cast, causal=True).float().square().sum().backward()
    for x, y in zip(inputs, cast):
        assert x.grad.dtype == torch.float32 and torch.equal(x.grad, y.grad.float())


# ---- Compilers, transforms ----


@pytest.fixture
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "backend"),
    [("causal", "eager"), ("causal", "aot_eager"), ("ragged, sinks", "inductor")],
)
def test_compiles(name: str, backend: str, fresh_compiler: Any) -> None:
    tensors, options = _inputs(PROBLEMS[name])
    options = {**options, "return_lse": True, "out_dtype": None}

    def function(*x: torch.Tensor) -> torch.Tensor:
        q, k, v, *sinks = (2 * y for y in x)
        if sinks:
            return _loss(*torch_ops.flash_attn_varlen_func(q, k, v, sinks=sinks[0], **options))
        return _causal(q, k, v)

    expected = gradients(function, leaves(*tensors))
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    assert_close(gradients(compiled, leaves(*tensors)), expected, 1e-6)


def test_compiles_for_changing_lengths(fresh_compiler: Any) -> None:
    compiled = torch.compile(_causal, fullgraph=True, dynamic=True, backend="aot_eager")
    for seqlen in (7, 5, 3):
        inputs = leaves(*(x[:, :seqlen] for x in _qkv()))
        assert_close(gradients(compiled, inputs), gradients(_causal, inputs), 1e-6)


@pytest.mark.parametrize("attend", [torch_ops.flash_attn_func, fa2.flash_attn_func])
def test_checkpoints_compile_for_changing_lengths(attend: Any, fresh_compiler: Any) -> None:
    """A default that is a float would be an input of each graph, of which torch loses track between
    checkpoints."""

    def attend_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            q = checkpoint(attend, q, k, v, use_reentrant=False)
        return attend(q, k, v).square().sum()

    compiled = torch.compile(attend_twice, fullgraph=True, dynamic=True, backend="aot_eager")
    for seqlen in (7, 5):
        inputs = leaves(*(x[:, :seqlen] for x in _qkv()))
        assert_close(gradients(compiled, inputs), gradients(attend_twice, inputs), 1e-6)


def test_exported_model_is_trained() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(32, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch_ops.flash_attn_func(*self.qkv(x).unflatten(-1, (3, 2, 16)).unbind(2))

    model, x = Attention(), torch.randn(2, 7, 32)
    model(x).square().sum().backward()
    exported = torch.export.export(model, (x,)).module()
    exported(x).square().sum().backward()
    assert_close([exported.qkv.weight.grad], [model.qkv.weight.grad], 1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms() -> None:
    q, k, v = _qkv()
    expected = gradients(_causal, leaves(q, k, v))
    found = torch.func.grad(_causal, argnums=(0, 1, 2))(q, k, v)
    assert all(torch.equal(x, y) for x, y in zip(found, expected))
    both = torch.stack([q, 2 * q])
    mapped = torch.func.vmap(torch.func.grad(_causal), (0, None, None))(both, k, v)
    assert torch.equal(mapped[0], expected[0])

    def of_mapped(q: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(_causal, (0, None, None))(torch.stack([q, q]), k, v).sum()

    twice = torch.func.grad(of_mapped)(q)
    assert_close([twice], [2 * expected[0]], 1e-6)


def test_there_is_no_second_derivative() -> None:
    q, k, v = leaves(*_qkv())
    first = torch.autograd.grad(_causal(q, k, v), (q, k, v), create_graph=True)
    assert all(torch.equal(x, y) for x, y in zip(first, gradients(_causal, [q, k, v])))
    match = "the gradients of attention have no gradients themselves"
    for x in first:
        with pytest.raises(NotImplementedError, match=match):
            torch.autograd.grad(x.sum(), q, retain_graph=True)
    k, v = k.detach(), v.detach()
    with pytest.raises(NotImplementedError, match=match):
        torch.func.grad(lambda q: torch.func.grad(_causal)(q, k, v).sum())(q.detach())
    o, lse = _both(q, k, v)
    with pytest.raises(NotImplementedError, match="d_o has a tangent"):
        torch.func.jvp(lambda d_o: ops.bwd(d_o, q, k, v, o, lse)[0], (o,), (o,))


# ---- The operators ----


def _of_forward(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of an operator of gradients, and those of their sum."""
    p = PROBLEMS[{"bwd": "sinks", "varlen_bwd": "ragged, sinks"}[name]]
    tensors, options = _inputs(p)
    o, lse = _attend(tensors, {**options, "return_lse": True})
    q, k, v, sinks = tensors
    needed = [torch.ones_like(o), q, k, v, o, lse]
    if name == "varlen_bwd":
        needed += [options[x] for x in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q")]
        needed.append(options["max_seqlen_k"])
    return needed, {"causal": True, "sinks": sinks}


@pytest.mark.parametrize("name", ["bwd", "varlen_bwd"])
def test_operators_are_what_they_claim(name: str) -> None:
    arguments, options = _of_forward(name)
    operator = getattr(ops, name)
    results = {f"d{x}": torch.empty_like(y) for x, y in zip("qkv", arguments[1:4])}
    for more in ({}, {"d_lse": torch.ones_like(arguments[5]), "dk": False, "d_sinks": False}):
        found = torch.library.opcheck(operator.default, arguments, {**options, **more})
        assert set(found.values()) == {"SUCCESS"}
    found = torch.library.opcheck(operator.out, arguments, {**options, **results})
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("operator", ["fwd", "varlen_fwd"])
@pytest.mark.parametrize("overload", ["default", "lse"])
def test_operators_of_attention_with_gradients_are_what_they_claim(
    operator: str, overload: str
) -> None:
    p = PROBLEMS["causal" if operator == "fwd" else "ragged"]
    tensors, options = _inputs(p)
    more = (options["cu_seqlens_q"], options["cu_seqlens_k"], 7, 9)
    more = more if operator == "varlen_fwd" else ()
    arguments = (*leaves(*tensors), *more)
    found = torch.library.opcheck(getattr(getattr(ops, operator), overload), arguments)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ["bwd", "varlen_bwd"])
def test_results_that_are_given(name: str) -> None:
    arguments, options = _of_forward(name)
    operator = getattr(ops, name)
    expected = operator(*arguments, **options)
    packed = torch.zeros(*arguments[2].shape[:-2], 2, *arguments[2].shape[-2:])
    dk, dv = packed.unbind(-3)
    versions = packed._version
    d_sinks = torch.empty(4)
    assert operator.out(*arguments, **options, dk=dk, dv=dv, d_sinks=d_sinks) is None
    for x, y in zip((dk, dv, d_sinks), expected[1:]):
        assert torch.equal(x, y)
    assert packed._version > versions
    dq = torch.ones_like(arguments[1])
    operator.out(*arguments, **options, dq=dq, add=True)
    assert_close([dq], [1 + expected[0]], 1e-6)
    nothing = operator(*arguments, **options, dq=False, dv=False, d_sinks=False)
    assert [x.numel() for x in nothing] == [0, expected[1].numel(), 0, 0]
    assert torch.equal(nothing[1], expected[1])


def test_operators_take_what_attention_takes() -> None:
    without = {"page_table", "v_page_table", "page_indptr", "page_rows"}
    without |= {"k_descale", "v_descale", "q_descale", "page_scales"}
    for of_forward, of_gradients in (("fwd", "bwd"), ("varlen_fwd", "varlen_bwd")):
        first, second = (
            [(x.name, str(x.type), x.default_value) for x in operator.default._schema.arguments]
            for operator in (getattr(ops, of_forward), getattr(ops, of_gradients))
        )
        wanted = [x for x in first[3:] if x[0] not in without]
        n_given = [x[0] for x in second].index("d_lse")
        assert second[6:n_given] == [x for x in wanted if x[0] != "out_dtype"]


# ---- Refusals ----


@every_way
@pytest.mark.parametrize("of", ["q", "k", "v"])
def test_calls_without_gradients_are_refused(of: str, way: str) -> None:
    """The message says what there is no gradient of, and what to do."""
    q, k, v = _qkv()
    e4m3 = torch.float8_e4m3fn
    table, used = torch.zeros(2, 1, dtype=torch.int32), torch.tensor([3, 3], dtype=torch.int32)
    calls = {
        "with K and V in pages": ((q, k, v), {"page_table": table, "seqused_k": used}),
        "with scales of K and V": ((q, k.to(e4m3), v.to(e4m3)), {"k_descale": 2.0}),
        "with K in torch.float8_e4m3fn": ((q, k.to(e4m3), v.to(e4m3)), {}),
        "of results that are given as out and lse": ((q, k, v), {"out": torch.empty_like(q)}),
    }
    for where, (tensors, options) in calls.items():
        derived = dict(zip("qkv", tensors))
        derived[of] = derived[of].clone().requires_grad_()
        match = f"^{of} requires a gradient, and there is none {where}.*: use {of}.detach"
        with torch_calls.entered(way), pytest.raises(NotImplementedError, match=match):
            torch_ops.flash_attn_func(**derived, **options)
        with torch_calls.entered(way), torch.no_grad():
            torch_ops.flash_attn_func(**derived, **options)


@every_way
@pytest.mark.parametrize("name", ["alibi_slopes", "attn_mask"])
def test_gradients_of_a_bias_are_refused(name: str, way: str) -> None:
    bias = {"alibi_slopes": torch.ones(4), "attn_mask": torch.zeros(7, 9)}[name].requires_grad_()
    match = f"{name} requires a gradient, and flashattn.torch_ops records those of attention's q"
    for q, k, v in (_qkv(), leaves(*_qkv())):
        with torch_calls.entered(way), pytest.raises(NotImplementedError, match=match):
            torch_ops.flash_attn_func(q, k, v, **{name: bias})


@every_way
@pytest.mark.parametrize("name", ["softmax_scale", "softcap", "dropout_p"])
@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_gradients_of_numbers_are_refused(name: str, way: str, kind: type) -> None:
    """A tensor is taken as a number, but not one whose gradient would be lost."""
    number = torch.tensor(0.5, requires_grad=True)
    number = kind(number) if kind is torch.nn.Parameter else number
    instead = "multiply q by it, or " if name == "softmax_scale" else ""
    match = f"{name} requires a gradient, and there is none of numbers: {instead}use {name}.item"
    for q, k, v in (_qkv(), leaves(*_qkv())):
        for attend in (torch_ops.flash_attn_func, fa2.flash_attn_func):
            with torch_calls.entered(way), pytest.raises(NotImplementedError, match=match):
                attend(q, k, v, **{name: number})
    if name != "dropout_p":  # which is random
        with torch_calls.entered(way), torch.no_grad():
            found = torch_ops.flash_attn_func(q, k, v, **{name: number})
            assert torch.equal(found, torch_ops.flash_attn_func(q, k, v, **{name: 0.5}))


def test_types_without_attention_are_refused_as_such() -> None:
    """Not for their gradients: without them the call would be refused, too."""
    q, k, v = leaves(*(x.double() for x in _qkv()))
    with pytest.raises(ValueError, match="q is float64: not float16, bfloat16 or float32"):
        torch_ops.flash_attn_func(q, k, v)


def test_gradients_of_the_functions_for_all_arrays_are_refused() -> None:
    q, k, v = leaves(*_qkv())
    with pytest.raises(NotImplementedError, match="q requires .* flashattn.torch_ops records"):
        flashattn.flash_attn_func(q, k, v)


@pytest.mark.parametrize("by_operator", [False, True])
def test_gradients_of_wide_heads_on_cuda_devices_are_refused(by_operator: bool) -> None:
    with FakeTensorMode():
        q = torch.empty(1, 4, 2, 320, device="cuda", dtype=torch.float16, requires_grad=True)
        attend = ops.fwd if by_operator else torch_ops.flash_attn_func
        with pytest.raises(NotImplementedError, match="q requires .* more than 256 columns"):
            attend(q, q, q)
        with torch.no_grad():
            assert attend(q, q, q).shape == q.shape


def test_a_device_with_little_memory_keeps_no_ds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes the least workspace where there is no memory for the best."""
    asked = []

    def empty(like: object, device: int, shape: tuple[int], *_: str) -> int:
        asked.append(shape[0])
        if shape[0] > 10:
            raise torch.OutOfMemoryError("no memory")
        return shape[0]

    monkeypatch.setattr(_attention._tensor, "empty", empty)
    assert _attention._allocated(None, 0, 100, 10) == 10 and asked == [100, 10]
    for least in (None, 100):
        with pytest.raises(torch.OutOfMemoryError):
            _attention._allocated(None, 0, 100, least)
