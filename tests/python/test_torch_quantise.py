"""The operators that quantise, against flashattn.quantise, and in graphs."""

from __future__ import annotations

import flashattn
import pytest

torch = pytest.importorskip("torch")

from flashattn import torch_ops  # noqa: E402

OPTIONS = (
    {},
    {"n_scales": 2},
    {"tokens": True, "hadamard": True},
    {"cu_seqlens": (0, 3, 3, 40), "max_seqlen": 37},
    {"cu_seqlens": (0, 3, 3, 40), "max_seqlen": 37, "tokens": True},
)


def _x(ragged: bool) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*((40,) if ragged else (2, 40)), 4, 64, dtype=torch.bfloat16)


def _case(options: dict) -> tuple[torch.Tensor, dict]:
    ends = options.get("cu_seqlens")
    given = {} if ends is None else {"cu_seqlens": torch.tensor(ends, dtype=torch.int32)}
    return _x(ends is not None), {**options, **given}


def _assert_same(found: tuple, expected: tuple) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype and a.shape == b.shape
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("minus_mean", [False, True])
def test_the_function_the_operator_and_a_graph_agree(options: dict, minus_mean: bool) -> None:
    x, options = _case(options)
    expected = flashattn.quantise(x, minus_mean=minus_mean, **options)
    _assert_same(torch_ops.quantise(x, minus_mean=minus_mean, **options), expected)
    operator = torch.ops.flashattn.quantise
    operator = operator.minus_mean if minus_mean else operator.default
    _assert_same(operator(x, **options), [y for y in expected if y is not None])
    torch.library.opcheck(operator, (x,), options)

    torch.compiler.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x: torch.Tensor) -> flashattn.Quantised:
        return torch_ops.quantise(x + 0, minus_mean=minus_mean, **options)

    _assert_same(compiled(x), expected)


def test_what_is_refused() -> None:
    x = _x(False).requires_grad_()
    for call in (torch_ops.quantise, torch.ops.flashattn.quantise.minus_mean):
        with pytest.raises(NotImplementedError, match="x requires a gradient"):
            call(x)
    with pytest.raises(TypeError, match="x is a list: not a torch tensor"):
        torch_ops.quantise([1.0])
    with pytest.raises(TypeError, match="cu_seqlens is a list: not a torch tensor"):
        torch_ops.quantise(_x(True), cu_seqlens=[0, 40], max_seqlen=40)
    with pytest.raises(ValueError, match="n_scales is 3: it does not divide n_heads, 4"):
        torch.ops.flashattn.quantise(_x(False), n_scales=3)
    with pytest.raises(ValueError, match="x is float64"):
        torch_ops.quantise(_x(False).double())
