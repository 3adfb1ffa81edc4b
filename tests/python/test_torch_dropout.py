"""Dropout by torch: the operators and their gradients, states of torch's generator, flash-attn's
functions, and models of transformers in training."""

from __future__ import annotations

from typing import Any, Callable

import flashattn
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from flashattn import dropout, torch_ops  # noqa: E402
from flashattn.compat import fa2  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

STATE = (0x0123456789ABCDEF, 2**35 + 11)
OPTIONS = {"dropout_p": 0.3, "causal": True}
ENDS = torch.tensor([0, 20, 20, 80], dtype=torch.int32)


def _state() -> torch.Tensor:
    return torch.tensor(STATE)


def _leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def _padded() -> list[torch.Tensor]:
    return _leaves((2, 40, 4, 32), (2, 70, 2, 32), (2, 70, 2, 32))


def _ragged() -> tuple[list[torch.Tensor], dict[str, Any]]:
    lengths = {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS, "max_seqlen_q": 60, "max_seqlen_k": 60}
    return _leaves((80, 4, 32), (80, 2, 32), (80, 2, 32)), lengths


def _same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b))


# ---- The operators ----


def test_autograd_has_the_gradients_of_the_same_weights() -> None:
    q, k, v = _padded()
    o = torch_ops.flash_attn_func(q, k, v, rng_state=_state(), **OPTIONS)
    d_o = torch.randn_like(o)
    found = torch.autograd.grad(o, (q, k, v), d_o)
    q, k, v = (x.detach() for x in (q, k, v))
    options = {**OPTIONS, "rng_state": STATE}
    expected, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
    assert torch.equal(o, expected)
    assert _same(found, flashattn.flash_attn_backward(d_o, q, k, v, o.detach(), lse, **options))


def test_a_ragged_batch() -> None:
    tensors, lengths = _ragged()
    o = torch_ops.flash_attn_varlen_func(*tensors, **lengths, rng_state=_state(), **OPTIONS)
    d_o = torch.randn_like(o)
    found = torch.autograd.grad(o, tensors, d_o)
    q, k, v = (x.detach() for x in tensors)
    options = {**OPTIONS, **lengths, "rng_state": STATE}
    expected, lse = flashattn.flash_attn_varlen_func(q, k, v, return_lse=True, **options)
    assert torch.equal(o, expected)
    assert _same(found, flashattn.flash_attn_backward(d_o, q, k, v, o.detach(), lse, **options))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_types_of_the_state(dtype: torch.dtype) -> None:
    q, k, v = (x.detach() for x in _padded())
    found = torch_ops.flash_attn_func(q, k, v, rng_state=_state().view(dtype), **OPTIONS)
    assert torch.equal(found, flashattn.flash_attn_func(q, k, v, rng_state=STATE, **OPTIONS))


def test_operators_are_sound() -> None:
    q, k, v = _padded()
    options = {"dropout_p": 0.2, "rng_state": _state()}
    torch.library.opcheck(torch.ops.flashattn.fwd.default, (q, k, v), options)


@pytest.mark.parametrize("extension", [True, False])
def test_operators_need_a_state(extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        monkeypatch.setattr("flashattn._torch.extension.forward", None)
    q, k, v = (x.detach() for x in _padded())
    with pytest.raises(ValueError, match="dropout_p is 0.2, and rng_state is None"):
        torch.ops.flashattn.fwd(q, k, v, dropout_p=0.2)
    for state in (torch.zeros(3, dtype=torch.int64), torch.zeros(2)):
        with pytest.raises(ValueError, match="rng_state"):
            torch_ops.flash_attn_func(q, k, v, dropout_p=0.2, rng_state=state)
    for p in (1.0, -0.5):
        with pytest.raises(ValueError, match="dropout.p is"):
            torch_ops.flash_attn_func(q, k, v, dropout_p=p)


def test_a_probability_of_0_changes_no_bit() -> None:
    q, k, v = (x.detach() for x in _padded())
    plain = torch_ops.flash_attn_func(q, k, v)
    before = torch.get_rng_state()
    assert torch.equal(torch_ops.flash_attn_func(q, k, v, dropout_p=0.0), plain)
    assert torch.equal(torch_ops.flash_attn_func(q, k, v, dropout_p=0), plain)
    assert torch.equal(before, torch.get_rng_state())


# ---- States of torch's generator ----

Call = Callable[..., torch.Tensor]


def _seeded(call: Call, *tensors: torch.Tensor, seed: int = 3) -> torch.Tensor:
    torch.manual_seed(seed)
    return call(*tensors)


def _draws(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch_ops.flash_attn_func(q, k, v, **OPTIONS)


def test_states_come_from_the_generator() -> None:
    tensors = [x.detach() for x in _padded()]
    first, again = _seeded(_draws, *tensors), _draws(*tensors)
    assert torch.equal(first, _seeded(_draws, *tensors)) and not torch.equal(first, again)
    assert not torch.equal(first, _seeded(_draws, *tensors, seed=4))


def test_recomputation_drops_the_same_weights() -> None:
    q, k, v = _padded()
    expected = torch.autograd.grad(_seeded(_draws, q, k, v).sum(), (q, k, v))

    def recomputed(*tensors: torch.Tensor) -> torch.Tensor:
        return checkpoint(_draws, *tensors, use_reentrant=False)

    found = torch.autograd.grad(_seeded(recomputed, q, k, v).sum(), (q, k, v))
    assert _same(found, expected)


def test_a_compiled_function_draws_as_an_eager_one() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(_draws, fullgraph=True, backend="aot_eager")
    q, k, v = _padded()
    found, expected = _seeded(compiled, q, k, v), _seeded(_draws, q, k, v)
    assert torch.equal(found, expected)
    gradients = [torch.autograd.grad(x.sum(), (q, k, v)) for x in (found, expected)]
    assert _same(*gradients)
    torch._dynamo.reset()


def test_as_many_weights_stay_as_the_probability_says() -> None:
    """With keys alike and V of ones, O is the rate of the weights that stay, over 1 - p."""
    q, k, v = torch.zeros(4, 256, 8, 16), torch.zeros(4, 512, 8, 16), torch.ones(4, 512, 8, 16)
    o = torch_ops.flash_attn_func(q, k, v, dropout_p=0.25)
    assert abs(float(o.mean()) - 1) < 5 * (0.25 / 0.75 / (4 * 8 * 256 * 512)) ** 0.5


# ---- flash-attn's functions ----


@pytest.mark.parametrize("what", ["func", "kvpacked", "qkvpacked", "varlen", "varlen_qkvpacked"])
def test_functions_of_flash_attn(what: str) -> None:
    """They drop by a state of the generator, in the backward pass the same weights."""
    lengths = {"cu_seqlens": ENDS, "max_seqlen": 60}
    packed = {
        "func": (_padded(), fa2.flash_attn_func, {}),
        "kvpacked": (_leaves((2, 40, 4, 32), (2, 70, 2, 2, 32)), fa2.flash_attn_kvpacked_func, {}),
        "qkvpacked": (_leaves((2, 40, 3, 4, 32)), fa2.flash_attn_qkvpacked_func, {}),
        "varlen": (*_ragged(), None),
        "varlen_qkvpacked": (
            _leaves((80, 3, 4, 32)), fa2.flash_attn_varlen_qkvpacked_func, lengths
        ),
    }  # fmt: skip
    tensors, function, options = packed[what]
    if what == "varlen":
        function, options = fa2.flash_attn_varlen_func, function

    def call() -> torch.Tensor:
        torch.manual_seed(9)
        return function(*tensors, dropout_p=0.3, **options)

    o = call()
    direction = [torch.randn_like(x) for x in tensors]
    gradients = torch.autograd.grad(o.sum(), tensors)
    expected = sum(float((g * d).sum()) for g, d in zip(gradients, direction))
    losses = []
    with torch.no_grad():
        for side in (1, -1):
            moved = [x + side * 1e-2 * d for x, d in zip(tensors, direction)]
            torch.manual_seed(9)
            losses.append(float(function(*moved, dropout_p=0.3, **options).double().sum()))
    assert abs((losses[0] - losses[1]) / 2e-2 - expected) < 2e-2 * (1 + abs(expected))
    assert torch.equal(o, call())


def test_probabilities_are_not_returned_with_dropout() -> None:
    q, k, v = (x.detach() for x in _padded())
    with pytest.raises(NotImplementedError, match=r"return_attn_probs True.*dropout\.kept\(\)"):
        fa2.flash_attn_func(q, k, v, 0.1, return_attn_probs=True)
    assert len(fa2.flash_attn_func(q, k, v, 0.0, return_attn_probs=True)) == 3


def test_the_mask_is_that_of_the_drawn_state() -> None:
    torch.manual_seed(5)
    state = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64)
    kept = dropout.kept(0.5, tuple(state.tolist()), 1, 2, 16, 16)
    q, k, v = torch.zeros(1, 16, 2, 16), torch.zeros(1, 16, 2, 16), torch.eye(16)
    torch.manual_seed(5)
    o = fa2.flash_attn_func(q, k, v[None, :, None].expand(1, 16, 2, 16).contiguous(), 0.5)
    assert ((o.numpy().transpose(0, 2, 1, 3) != 0) == kept).all()
    np.testing.assert_allclose(o[o != 0].numpy(), 2 / 16, rtol=1e-5)


# ---- transformers ----


def _model(name: str = "llama") -> Any:
    transformers = pytest.importorskip("transformers")
    import flashattn.hf

    flashattn.hf.register()
    if name == "llama":
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.5,
        )  # fmt: skip
    else:
        config = transformers.GPT2Config(
            vocab_size=64, n_embd=64, n_layer=2, n_head=4, attn_pdrop=0.5, resid_pdrop=0.0,
            embd_pdrop=0.0,
        )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flashattn")



@pytest.mark.parametrize("padded", [False, True])
def test_models_train_with_dropout_of_attention(padded: bool) -> None:
    model = _model()
    ids = torch.randint(0, 64, (2, 20))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        model.zero_grad()
        found = model(ids, attention_mask=mask, labels=ids).loss
        found.backward()
        assert all(torch.isfinite(x.grad).all() for x in model.parameters())
        return float(found.detach())

    model.train()
    assert loss(1) == loss(1) != loss(2)
    model.eval()
    assert loss(1) == loss(2)


@pytest.mark.parametrize("padding", ["left", "right", "both", "gaps"])
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_checkpoints_of_padded_models_drop_the_same_weights(
    padding: str, use_reentrant: bool, name: str
) -> None:
    """A reentrant checkpoint records no gradients as it computes for the first time, and the second
    time it passes what detach() gives of positional arguments, of which GPT-2's mask is one."""
    model = _model(name).train()
    ids = torch.randint(0, 64, (2, 20))
    mask = torch.ones_like(ids)
    places = {"left": [slice(5)], "right": [slice(15, 20)], "gaps": [slice(3, 9)]}
    for place in places.get(padding, [slice(5), slice(15, 20)]):
        mask[0, place] = 0

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        logits = model(ids, attention_mask=mask, use_cache=False).logits
        (logits.square() * mask[:, :, None]).mean().backward()
        return [x.grad.clone() for x in model.parameters()]

    expected = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert all(torch.equal(x, y) for x, y in zip(gradients(), expected))
