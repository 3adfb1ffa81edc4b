"""flashattn.hf and flashattn.sdpa: models in 16 bits on the CPU (hf_cases.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import hf_cases  # noqa: E402
from hf_cases import CACHES, DTYPES, MODELS, OF_SDPA, SIDES, TRAINED  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error:flashattn.hf")
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    with hf_cases.registered():
        yield
    torch.set_num_threads(n_threads)


@every_dtype
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_prefill(name: str, side: str, dtype: torch.dtype) -> None:
    hf_cases.check_prefill(name, dtype, "cpu", side)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", TRAINED)
def test_training(name: str, side: str) -> None:
    hf_cases.check_training(name, torch.bfloat16, "cpu", side)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
def test_generation(name: str, cache: str) -> None:
    hf_cases.check_generation(name, torch.bfloat16, "cpu", cache)


def test_generation_by_compiled_steps() -> None:
    options = {"backend": "eager", "mode": "default"}
    hf_cases.check_generation("llama", torch.bfloat16, "cpu", "static", options)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_continuous_batching(name: str) -> None:
    hf_cases.check_continuous_batching(name, torch.bfloat16, "cpu")


@every_dtype
@pytest.mark.parametrize("name", OF_SDPA)
def test_torchs_function(name: str, dtype: torch.dtype) -> None:
    assert hf_cases.check_sdpa(name, dtype, "cpu") == hf_cases.SIZES["num_hidden_layers"]
