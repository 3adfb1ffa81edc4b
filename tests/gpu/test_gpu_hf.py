"""flashattn.hf and flashattn.sdpa: models of transformers in 16 bits on a CUDA device. The cases
are those of tests/python/test_hf_models.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("transformers")
import hf_cases  # noqa: E402
from flashattn.hf import _attention  # noqa: E402
from hf_cases import CACHES, DTYPES, MODELS, OF_SDPA, SIDES, TRAINED  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error:flashattn.hf")
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with hf_cases.registered():
        yield


@every_dtype
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_prefill(name: str, side: str, dtype: torch.dtype) -> None:
    hf_cases.check_prefill(name, dtype, "cuda", side)


@every_dtype
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", TRAINED)
def test_training(name: str, side: str, dtype: torch.dtype) -> None:
    hf_cases.check_training(name, dtype, "cuda", side)


@every_dtype
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
def test_generation(name: str, cache: str, dtype: torch.dtype) -> None:
    hf_cases.check_generation(name, dtype, "cuda", cache)


def test_generation_by_compiled_steps() -> None:
    """With torch's default backend and CUDA graphs between the layers' attention."""
    hf_cases.check_generation("llama", torch.bfloat16, "cuda", "static", {})


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_continuous_batching(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models without windows decode from pages in place, by block tables."""
    calls = []
    attend = _attention.attend_cache

    def counted(*arguments: object, **options: object) -> torch.Tensor:
        calls.append(1)
        return attend(*arguments, **options)

    monkeypatch.setattr(_attention, "attend_cache", counted)
    hf_cases.check_continuous_batching(name, torch.bfloat16, "cuda")
    if name == "llama":
        assert len(calls) >= hf_cases.SIZES["num_hidden_layers"], "no step read its pages in place"


@every_dtype
@pytest.mark.parametrize("name", OF_SDPA)
def test_torchs_function(name: str, dtype: torch.dtype) -> None:
    assert hf_cases.check_sdpa(name, dtype, "cuda") == hf_cases.SIZES["num_hidden_layers"]
