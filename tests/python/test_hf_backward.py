"""flashattn.hf in training: losses and gradients of models of transformers, step by step, against
their own eager attention.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import flashattn.hf  # noqa: E402
from flashattn._torch import backward  # noqa: E402
from torch_gradients import assert_close  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error:flashattn.hf")

NAME = "libfa"  # gpt-oss takes kernels of its own instead of a name with "flash"
N_LAYERS, SEQLEN = 2, 12
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 8,
}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, sliding_window=5, query_pre_attn_scalar=8, attn_logit_softcapping=5.0
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES,
        num_local_experts=2,
        num_experts_per_tok=2,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
LENGTHS = (12, 7)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    flashattn.hf.register(NAME)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    torch.manual_seed(0)
    yield
    torch.set_num_threads(n_threads)
    flashattn.hf.unregister(NAME)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that gets an entry for each time that the library computes gradients."""
    calls: list[str] = []
    compute = backward.flash_attn_backward

    def count(*arguments: Any, **options: Any) -> Any:
        calls.append("backward")
        return compute(*arguments, **options)

    monkeypatch.setattr(backward, "flash_attn_backward", count)
    return calls


def _models(name: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Returns a model with eager attention, and its copy with that of the library."""
    eager = transformers.AutoModelForCausalLM.from_config(
        MODELS[name](), attn_implementation="eager"
    ).train()
    own = copy.deepcopy(eager)
    own.set_attn_implementation(NAME)
    return eager, own


def _batch(kind: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 61, (2, SEQLEN), generator=torch.Generator().manual_seed(1))
    if kind == "full":
        return {"input_ids": ids, "labels": ids}
    if kind == "packed":  # three sequences in one row, which their positions tell apart
        positions = torch.cat([torch.arange(n) for n in (5, 1, 6)])[None]
        labels = torch.where(positions == 0, -100, ids[:1])
        return {"input_ids": ids[:1], "position_ids": positions, "labels": labels}
    mask = torch.ones_like(ids)
    mask[1, slice(5) if kind == "left" else slice(7, None)] = 0
    labels = torch.where(mask.bool(), ids, -100)
    if kind == "left":
        labels[1, 5] = -100
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {
        "input_ids": ids, "attention_mask": mask, "labels": labels, "position_ids": positions
    }  # fmt: skip


def _gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [x.grad for x in model.parameters() if x.grad is not None]


def _assert_same_step(
    models: tuple[torch.nn.Module, torch.nn.Module], batch: dict[str, torch.Tensor], **options: Any
) -> None:
    """Asserts that both models have the same loss and the same gradients, within rounding."""
    losses = []
    for model in models:
        model.zero_grad()
        loss = model(**batch, use_cache=False, **options).loss
        loss.backward()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    found, expected = _gradients(models[1]), _gradients(models[0])
    assert len(found) == len(expected) > 8 * N_LAYERS
    largest = max(float(x.abs().max()) for x in expected)
    for x, y in zip(found, expected):
        assert float((x - y).abs().max()) <= 1e-4 * max(float(y.abs().max()), 1e-2 * largest)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in MODELS
        for kind in ("full", "left", "right", "packed")
        if (name, kind) != ("gpt_oss", "packed")  # whose eager attention does not see the packing
    ],
)
def test_three_steps(name: str, kind: str, counted: list[str]) -> None:
    models = _models(name)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    batch = _batch(kind)
    for _ in range(3):
        _assert_same_step(models, batch)
        for optimizer in optimizers:
            optimizer.step()
    assert len(counted) == 3 * N_LAYERS
    for x, y in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-4)


def test_packed_sequences_of_gpt_oss_are_apart() -> None:
    eager, own = _models("gpt_oss")
    batch = _batch("packed")
    n_labels = int((batch["labels"] != -100).sum())
    own(**batch, use_cache=False).loss.backward()
    for ids, labels in zip(*(batch[x].split((5, 1, 6), 1) for x in ("input_ids", "labels"))):
        n = int((labels != -100).sum())
        if n:
            (eager(input_ids=ids, labels=labels).loss * (n / n_labels)).backward()
    found = {name: x.grad for name, x in own.named_parameters() if "router" not in name}
    expected = {name: x.grad for name, x in eager.named_parameters()}
    assert len(found) > 8 * N_LAYERS
    for name, x in found.items():
        torch.testing.assert_close(x, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_gradient_checkpointing(name: str, use_reentrant: bool, counted: list[str]) -> None:
    models = _models(name)
    for model in models:
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    _assert_same_step(models, _batch("packed"))
    assert len(counted) == N_LAYERS


def test_frozen_layers_record_nothing(counted: list[str]) -> None:
    models = _models("llama")
    for model in models:
        model.requires_grad_(False)
        model.model.layers[-1].mlp.requires_grad_(True)
        model.zero_grad()
        model(**_batch("left"), use_cache=False).loss.backward()
    assert not counted
    assert_close(_gradients(models[1]), _gradients(models[0]), 1e-4)


def test_autocast() -> None:
    models = _models("llama")
    for model in models:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**_batch("full"), use_cache=False).loss
        loss.backward()
    for x, y in zip(_gradients(models[1]), _gradients(models[0])):
        assert float((x - y).norm()) <= 5e-2 * float(y.norm()) + 1e-5


def test_trainer_of_a_compiled_model(counted: list[str]) -> None:
    """The graph breaks at attention, which is called as in eager code."""
    torch._dynamo.reset()
    models = _models("llama")
    compiled = torch.compile(models[1], backend="aot_eager")
    for model, called in zip(models, (models[0], compiled)):
        model.zero_grad()
        called(**_batch("full"), use_cache=False).loss.backward()
    assert len(counted) == N_LAYERS
    assert_close(_gradients(models[1]), _gradients(models[0]), 1e-3)
    torch._dynamo.reset()
