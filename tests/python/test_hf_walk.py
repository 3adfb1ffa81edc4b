"""flashattn.hf: tiny models of many kinds against their own eager attention (hf_walk.py). With
FLASHATTN_HF_WALK=all in the environment these are all model types that transformers has, which
takes many minutes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import hf_walk  # noqa: E402

# Each type of model has the expected outcome for a name with "flash" in it, and for one without.
SAMPLE = {
    "bart": ("equal", "equal"),
    "bert": ("equal", "equal"),
    "cohere2": ("equal", "equal"),
    "deepseek_v3": ("equal", "equal"),
    "deepseek_v4": ("refused", "refused"),  # hands over masks of numbers alone
    "gemma3_text": ("equal", "equal"),
    "gpt_oss": ("refused", "equal"),  # by transformers, which wants a kernel of its own
    "llama": ("equal", "equal"),
    "llama4_text": ("refused", "equal"),
    "modernbert": ("equal", "equal"),
    "pegasus_x": ("equal", "equal"),
    "phimoe": ("equal", "equal"),
    "qwen2": ("equal", "equal"),
    "qwen3_next": ("equal", "equal"),
    "t5": ("refused", "refused"),
    "vit": ("equal", "equal"),
    "whisper": ("equal", "equal"),
}
EVERY = os.environ.get("FLASHATTN_HF_WALK") == "all"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    with hf_walk.registered():
        yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize("model_type", hf_walk.model_types() if EVERY else SAMPLE)
def test_model(model_type: str) -> None:
    found = hf_walk.walk(model_type)
    replay = f"python tests/python/hf_walk.py {model_type}: {hf_walk.summary(found)}"
    kinds = {where: result.partition(":")[0] for where, result in found.items()}
    assert not {"WRONG", "FAILED"} & set(kinds.values()), replay
    if model_type in SAMPLE:
        for name, expected in zip(hf_walk.NAMES, SAMPLE[model_type]):
            results = {kind for where, kind in kinds.items() if where.startswith(name)}
            assert results == {expected}, replay
    elif "model" in found:
        pytest.skip(replay)
