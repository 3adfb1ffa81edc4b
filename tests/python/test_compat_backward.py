"""Gradients of flash-attn's functions: those of the formulas, in packed tensors too, beside all
arguments that gradients depend on.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch_gradients  # noqa: E402
from flashattn import torch_ops  # noqa: E402
from flashattn.compat import _packed, fa2, fa3  # noqa: E402
from torch_gradients import assert_close, gradients, leaves  # noqa: E402

LENGTHS = (5, 0, 3)
ENDS = torch.tensor([0, 5, 5, 8], dtype=torch.int32)
both_versions = pytest.mark.parametrize("version", [fa2, fa3], ids=["fa2", "fa3"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _loss(o: torch.Tensor, lse: torch.Tensor | None = None) -> torch.Tensor:
    weights = torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view(o.shape)
    total = (o * weights).sum() + (o**2).sum()
    return total if lse is None else total + torch.where(lse.isinf(), 0, lse).square().sum()


def _expected(tensors: list[torch.Tensor], with_lse: bool = False, **options: Any) -> list:
    """Returns the gradients of padded q, k and v in float64."""

    def loss(*x: torch.Tensor) -> torch.Tensor:
        o, lse = torch_gradients.attention(*x, **options)
        return _loss(o, lse if with_lse else None)

    return gradients(loss, leaves(*(x.double() for x in tensors)))


def _expected_ragged(tensors: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    def loss(*x: torch.Tensor) -> torch.Tensor:
        parts = [y.split(LENGTHS) for y in x]
        found = [
            torch_gradients.attention(*(y[None] for y in one), **options)[0][0]
            for one in zip(*parts)
            if len(one[0])
        ]
        return _loss(torch.cat(found))

    return gradients(loss, leaves(*(x.double() for x in tensors)))


def _padded() -> list[torch.Tensor]:
    return [torch.randn(2, 5, 4, 16), torch.randn(2, 7, 2, 16), torch.randn(2, 7, 2, 16)]


@both_versions
@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"window_size": (2, 1), "softcap": 3.0}, {"softmax_scale": 0.5}],
    ids=["causal", "window, softcap", "scale"],
)
def test_gradients_are_those_of_the_formulas(version: Any, options: dict[str, Any]) -> None:
    tensors = _padded()
    found = gradients(
        lambda *x: _loss(version.flash_attn_func(*x, deterministic=True, **options)),
        leaves(*tensors),
    )
    assert_close(found, _expected(tensors, **options))


@both_versions
def test_lse_has_a_gradient(version: Any) -> None:
    tensors = _padded()

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return _loss(*version.flash_attn_func(*x, return_attn_probs=True)[:2])

    assert_close(gradients(loss, leaves(*tensors)), _expected(tensors, with_lse=True))


def test_rows_without_keys_have_no_gradient() -> None:
    q, k, v = leaves(*(x[:, :n] for x, n in zip(_padded(), (5, 2, 2))))
    o, lse, _ = fa2.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(lse == torch.inf, torch.arange(5).expand(2, 4, 5) < 3)
    _loss(o, lse).backward()
    assert not q.grad[:, :3].any() and all(x.grad.isfinite().all() for x in (q, k, v))


def test_slopes_are_part_of_the_formula() -> None:
    tensors, slopes = _padded(), torch.tensor([0.5, 0.25, 1.0, 0.0])
    distance = (torch.arange(5)[:, None] + 2 - torch.arange(7)).abs()
    found = gradients(
        lambda *x: _loss(fa2.flash_attn_func(*x, alibi_slopes=slopes)), leaves(*tensors)
    )
    assert_close(found, _expected(tensors, attn_mask=-slopes[:, None, None] * distance))


# ---- Ragged batches ----


@both_versions
def test_ragged_batches(version: Any) -> None:
    tensors = [torch.randn(8, n, 16) for n in (4, 2, 2)]
    found = gradients(
        lambda *x: _loss(version.flash_attn_varlen_func(*x, ENDS, ENDS, 5, 5, causal=True)),
        leaves(*tensors),
    )
    assert_close(found, _expected_ragged(tensors, causal=True))


@both_versions
def test_rows_of_no_sequence_have_no_gradient(version: Any) -> None:
    tensors = [torch.randn(11, n, 16) for n in (4, 2, 2)]
    found = gradients(
        lambda *x: _loss(version.flash_attn_varlen_func(*x, ENDS, ENDS, 5, 5)[:8]),
        leaves(*tensors),
    )
    assert_close([x[:8] for x in found], _expected_ragged([x[:8] for x in tensors]))
    assert not any(x[8:].any() for x in found)


def test_rows_of_no_sequence_have_no_gradient_where_the_host_cannot_tell_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on CUDA devices, where nobody looks at cu_seqlens, and operators leave these rows alone:
    memory that is new holds anything."""
    packet = torch.ops.flashattn.varlen_bwd
    operator = packet.out

    def without_others(d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, **options: Any) -> None:
        options["dq"] = options["dq"][:8]
        operator(d_o[:8], q[:8], k, v, o[:8], lse[:, :8], **options)

    monkeypatch.setattr(_packed, "covers_all_rows", lambda *_: True)
    monkeypatch.setattr(packet, "out", without_others)
    torch.use_deterministic_algorithms(True)  # then new memory holds NaN
    try:
        q, kv = leaves(torch.randn(11, 4, 16), torch.randn(11, 2, 2, 16))
        o = fa2.flash_attn_varlen_kvpacked_func(q, kv, ENDS, ENDS, 5, 5, causal=True)
        o[:8].sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    for x in (q, kv):
        assert x.grad[:8].isfinite().all() and not x.grad[8:].any()


def test_tokens_in_use() -> None:
    tensors = _padded()
    used_q, used_k = (torch.tensor(x, dtype=torch.int32) for x in ((5, 2), (7, 4)))

    def loss(*x: torch.Tensor) -> torch.Tensor:
        o = fa3.flash_attn_varlen_func(*x, None, None, None, None, used_q, used_k)
        return _loss(o[1, :2])

    def expected(*x: torch.Tensor) -> torch.Tensor:
        parts = (y[1:, :n] for y, n in zip(x, (2, 4, 4)))
        return _loss(torch_gradients.attention(*parts)[0][0])

    exact = leaves(*(x.double() for x in tensors))
    assert_close(gradients(loss, leaves(*tensors)), gradients(expected, exact))


# ---- One tensor ----


def _qkvpacked(version: Any) -> tuple[Callable, torch.Tensor, Callable]:
    return version.flash_attn_qkvpacked_func, torch.randn(2, 5, 3, 4, 16), lambda x: x.unbind(2)


def _of_heads() -> tuple[Callable, torch.Tensor, Callable]:
    function = partial(fa3.flash_attn_qkvpacked_func, num_heads_q=4)
    return function, torch.randn(2, 5, 8, 16), lambda x: x.split((4, 2, 2), 2)


def _varlen_qkvpacked() -> tuple[Callable, torch.Tensor, Callable]:
    def function(x: torch.Tensor, **options: Any) -> Any:
        return fa2.flash_attn_varlen_qkvpacked_func(x, ENDS, 5, **options)

    return function, torch.randn(11, 3, 4, 16)[:8], lambda x: x.unbind(1)


def _kvpacked(n_axes: int) -> tuple[Callable, torch.Tensor, Callable]:
    q = torch.randn(2, 5, 4, 16) if n_axes == 5 else torch.randn(8, 4, 16)

    def function(x: torch.Tensor, **options: Any) -> Any:
        if n_axes == 5:
            return fa2.flash_attn_kvpacked_func(q, x, **options)
        return fa2.flash_attn_varlen_kvpacked_func(q, x, ENDS, ENDS, 5, None, **options)

    kv = torch.randn(2, 5, 2, 2, 16) if n_axes == 5 else torch.randn(9, 2, 2, 16)
    return function, kv, lambda x: (q, *x.unbind(-3))


PACKED = {
    "qkv, fa2": lambda: _qkvpacked(fa2),
    "qkv, fa3": lambda: _qkvpacked(fa3),
    "heads": _of_heads,
    "ragged qkv": _varlen_qkvpacked,
    "kv": lambda: _kvpacked(5),
    "ragged kv": lambda: _kvpacked(4),
}
every_packed = pytest.mark.parametrize("name", PACKED)


def _of_parts(name: str, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    if name.startswith("ragged"):
        return fa2.flash_attn_varlen_func(*parts, ENDS, ENDS, 5, None, causal=True)
    return fa3.flash_attn_func(*parts, causal=True)


@every_packed
def test_gradients_of_packed_tensors_are_those_of_their_parts(name: str) -> None:
    function, packed, split = PACKED[name]()
    first, second = leaves(packed, packed)
    o = function(first, causal=True)
    _loss(o).backward()
    _loss(_of_parts(name, split(second))).backward()
    assert torch.equal(first.grad, second.grad) and first.grad.is_contiguous()
    with torch.no_grad():
        assert torch.equal(function(first, causal=True), o)


@every_packed
def test_gradients_of_packed_tensors_are_written_in_place(name: str) -> None:
    """Autograd's own gradients of parts would be copied into one tensor."""
    function, packed, _ = PACKED[name]()
    packed.requires_grad_()
    o = function(packed, causal=True)
    assert type(o.grad_fn).__name__ == "_PackedBackward"
    o, lse = function(packed, causal=True, return_attn_probs=True)[:2]
    with torch.profiler.profile() as profile:
        _loss(o, lse).backward()
    operators = {event.key for event in profile.key_averages()}
    assert not operators & {"aten::stack", "aten::cat", "aten::slice_backward"}


@every_packed
def test_packed_tensors_compile_transform_and_cast(name: str) -> None:
    function, packed, _ = PACKED[name]()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return _loss(function(x, causal=True))

    expected = gradients(loss, leaves(packed))
    assert torch.equal(torch.func.grad(loss)(packed), expected[0])
    torch._dynamo.reset()
    if name not in ("ragged qkv", "ragged kv"):
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        assert_close(gradients(compiled, leaves(packed)), expected, 1e-6)
        torch._dynamo.reset()
    if not name.endswith("kv") or "qkv" in name:
        (cast,) = leaves(packed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = function(cast, causal=True)
        assert o.dtype == torch.bfloat16
        _loss(o.float()).backward()
        assert_close([cast.grad], expected, 5e-2)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@every_packed
def test_many_gradients_of_results_of_packed_tensors(name: str) -> None:
    function, packed, _ = PACKED[name]()
    (packed,) = leaves(packed)
    results = function(packed, causal=True, return_attn_probs=True)[:2]
    d_o, d_lse = (torch.randn(3, *x.shape) for x in results)
    for of_results in ((d_o, d_lse), (d_o, None), (None, d_lse)):
        wanted = [i for i, x in enumerate(of_results) if x is not None]
        of_these, given = ([x[i] for i in wanted] for x in (results, of_results))
        options = {"retain_graph": True, "is_grads_batched": True}
        (found,) = torch.autograd.grad(of_these, packed, given, **options)
        for i, x in enumerate(found):
            one = [y[i] for y in given]
            (expected,) = torch.autograd.grad(of_these, packed, one, retain_graph=True)
            assert torch.equal(x, expected)


def test_only_q_or_only_kv_needs_a_gradient() -> None:
    q, kv = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 2, 16)
    both = gradients(lambda *x: _loss(fa2.flash_attn_kvpacked_func(*x)), leaves(q, kv))
    of_q = gradients(lambda x: _loss(fa2.flash_attn_kvpacked_func(x, kv)), leaves(q))
    of_kv = gradients(lambda x: _loss(fa2.flash_attn_kvpacked_func(q, x)), leaves(kv))
    assert torch.equal(of_q[0], both[0]) and torch.equal(of_kv[0], both[1])


def test_packed_tensors_with_strides() -> None:
    qkv = torch.randn(2, 5, 3, 16, 4).transpose(-1, -2)
    first, second = leaves(qkv, qkv.contiguous())
    for x in (first, second):
        _loss(fa2.flash_attn_qkvpacked_func(x)).backward()
    assert torch.equal(first.grad, second.grad)


# ---- Refusals ----


@both_versions
def test_what_has_no_gradient_is_refused(version: Any) -> None:
    q, k, v = leaves(*_padded())
    cache = k.detach(), v.detach()
    with pytest.raises(NotImplementedError, match="q requires a gradient"):
        version.flash_attn_with_kvcache(q, *cache)
    with torch.no_grad():
        version.flash_attn_with_kvcache(q, *cache)
    if version is fa2:
        slopes = torch.ones(4, requires_grad=True)
        with pytest.raises(NotImplementedError, match="alibi_slopes requires a gradient"):
            fa2.flash_attn_func(q, k, v, alibi_slopes=slopes)
    first = gradients(lambda *x: _loss(version.flash_attn_func(*x)), [q, k, v])
    twice = torch.autograd.grad(_loss(version.flash_attn_func(q, k, v)), q, create_graph=True)
    assert torch.equal(twice[0], first[0])
    with pytest.raises(NotImplementedError, match="no second derivative"):
        twice[0].sum().backward()


def test_there_is_no_second_derivative_of_packed_tensors() -> None:
    (qkv,) = leaves(torch.randn(2, 5, 3, 4, 16))
    loss = _loss(fa2.flash_attn_qkvpacked_func(qkv))
    (first,) = torch.autograd.grad(loss, qkv, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        first.sum().backward()


def test_pages_of_a_ragged_batch_are_refused() -> None:
    (q,) = leaves(torch.randn(2, 4, 16))
    k, ends = torch.randn(3, 4, 2, 16), torch.tensor([0, 1, 2], dtype=torch.int32)
    table = torch.tensor([[0], [2]], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="q requires a .* with K and V in pages"):
        fa2.flash_attn_varlen_func(q, k, k, ends, 2 * ends, 1, 4, block_table=table)
    with torch.no_grad():
        torch_ops.flash_attn_varlen_func(
            q, k, k, cu_seqlens_q=ends, cu_seqlens_k=2 * ends, max_seqlen_q=1, page_table=table
        )
