"""vLLM with the backend, on the CPU, beside vLLM with its own: the same tokens and embeddings of
small random models of several families, with chunks of prompts, prefixes that are in the cache,
drafts, and a cache of e4m3. vLLM finds the backend by an entry point, as that of the wheel."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, FOLDER / "vllm_models.py", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that says that the package is installed, with the entry points of the wheel."""
    project = (ROOT / "pyproject.toml").read_text()
    folder = tmp_path_factory.mktemp("installed")
    about = folder / "flashattn-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flashattn\nVersion: 0\n")
    entry = re.search(r'\[project\.entry-points\."(.*?)"\]\n(\w+) = "(.*?)"\n', project)
    (about / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(*entry.groups()))
    return folder


@functools.cache
def _run(program: str, model: Path, installed: Path, wanted: str, *options: str) -> dict:
    """Runs tests/engines/vllm_PROGRAM.py, once for all tests, and returns what it prints."""
    paths = [str(installed), str(ROOT / "bindings/python")]
    environment = {**os.environ, "FLASHATTN_VLLM": wanted, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, FOLDER / f"vllm_{program}.py", model, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _check_calls(found: dict, layers: int, writers: int) -> None:
    """Each layer was computed by the library as often as the others, and written as often as others
    of its kind: what a decoder sees of an encoder is written in a request's first step alone."""
    calls, writes = found["calls"], found["writes"]
    assert len(calls) == layers and len(set(calls.values())) == 1, calls
    kinds = {(re.sub(r"\d+", "", name), n) for name, n in writes.items()}
    assert len(writes) == writers and len(kinds) == len(dict(kinds)), writes


def _difference(own: object, found: object) -> float:
    """Returns the largest difference between the numbers of lists of lists of them."""
    if isinstance(own, float):
        return abs(own - found)
    assert len(own) == len(found)
    return max(map(_difference, own, found))


class Case(NamedTuple):
    name: str
    options: tuple[str, ...] = ()
    layers: int = 3
    writers: int = 3
    program: str = "generate"


BFLOAT16 = ("--dtype", "bfloat16")
CASES = {
    "llama": Case("llama"),
    "llama-bfloat16": Case("llama", BFLOAT16),
    "llama4": Case("llama4", layers=4, writers=4),
    "mistral": Case("mistral"),
    "gemma2": Case("gemma2"),
    "gemma3": Case("gemma3"),
    "gemma3n": Case("gemma3n", layers=5),
    "qwen3": Case("qwen3"),
    "gpt_oss": Case("gpt_oss", BFLOAT16),
    "bloom": Case("bloom"),
    # Layers of the decoder, each with attention to itself and to the encoder.
    "whisper": Case("whisper", layers=6, writers=6, program="transcribe"),
}
# Largest differences of logarithms of probabilities, which are about -6 here: logits of bf16 have
# steps of 4e-3 there, and tokens within a few of them are about as likely as each other.
TOLERANCES = {(): 1e-4, BFLOAT16: 2e-2}


def _check_tokens(own: dict, found: dict, tolerance: float) -> None:
    """Tokens may part where the two likeliest are closer than the tolerance, and are not compared
    beyond that."""
    differences = []
    for mine, yours, of_mine, of_yours in zip(
        own["tokens"], found["tokens"], own["likeliest"], found["likeliest"]
    ):
        parted = [i for i, pair in enumerate(zip(mine, yours)) if pair[0] != pair[1]][:1]
        for i in parted:
            print(f"tokens part at {i}, where the likeliest are {of_mine[i][-2:]}")
            assert of_mine[i][-1] - of_mine[i][-2] < tolerance
        end = parted[0] + 1 if parted else len(mine)
        differences.append(_difference(of_mine[:end], of_yours[:end]))
    print(f"{sum(found['calls'].values())} calls, largest difference {max(differences):.1e}")
    assert max(differences) < tolerance


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tokens_are_those_of_vllms_own_backend(case: Case, models: Path, installed: Path) -> None:
    own, found = (
        _run(case.program, models / case.name, installed, wanted, *case.options)
        for wanted in ("0", "1")
    )
    assert own["calls"] == {}
    _check_calls(found, case.layers, case.writers)
    assert found["cached"] == own["cached"]
    _check_tokens(own, found, TOLERANCES[case.options])
    assert len({tuple(x) for x in own["tokens"]}) > 1


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_embeddings_are_those_of_vllms_own_backend(
    name: str, models: Path, installed: Path
) -> None:
    """Elements are up to 0.25, and a rounding of fp32 is 3e-8 of that."""
    own, found = (_run("embed", models / name, installed, wanted) for wanted in ("0", "1"))
    assert own["calls"] == {}
    _check_calls(found, 3, 3)  # vLLM asks encoders to write, too, which have no cache
    difference = _difference(own["embeddings"], found["embeddings"])
    print(f"{sum(found['calls'].values())} calls, largest difference {difference:.1e}")
    assert difference < 1e-6
    assert _difference(*own["embeddings"][:2]) > 0.1


def test_drafts_change_no_token(models: Path, installed: Path) -> None:
    plain = _run("generate", models / "llama", installed, "1")
    drafted = _run("generate", models / "llama", installed, "1", "--drafts", "3")
    _check_calls(drafted, 3, 3)
    steps = [next(iter(each["calls"].values())) for each in (plain, drafted)]
    print("{} steps without drafts, {} with them".format(*steps))
    assert steps[1] < steps[0]
    assert plain["cached"] == [0, 0, 0, 0, 64]
    assert drafted["tokens"] == plain["tokens"]


def test_bits_of_a_request_do_not_depend_on_its_batch(models: Path, installed: Path) -> None:
    """VLLM_BATCH_INVARIANT itself is not for vLLM on the CPU, whose matrix products it replaces by
    kernels in Triton."""
    found = _run("generate", models / "llama", installed, "1", "--alone")
    print(f"{found['requests_alone']} requests")
    assert found["requests_alone"] > 100 and found["differing"] == 0


N_LATENT_LAYERS = 3
LATENT_STEPS = {"float32": (), "float16": ("--dtype", "float16")}


@pytest.mark.parametrize("options", LATENT_STEPS.values(), ids=LATENT_STEPS)
def test_latent_attention_gives_the_tokens_of_vllms_own_backend(
    options: tuple[str, ...], models: Path, installed: Path
) -> None:
    own = _run("generate", models / "deepseek", installed, "0", *options)
    found = _run("generate", models / "deepseek", installed, "1", *options)
    assert own["calls"] == {}
    _check_latent_calls(found["calls"])
    assert found["tokens"] == own["tokens"]
    assert len({tuple(x) for x in own["tokens"]}) >= 4  # two prompts begin alike


def test_chunks_of_prompts_over_latent_tokens(models: Path, installed: Path) -> None:
    """On processors with AMX vLLM cuts prompts for latent attention, too, and finds their prefixes
    in the cache. Elsewhere it does neither, which must not matter."""
    own = _run("generate", models / "deepseek", installed, "0")
    found = _run("generate", models / "deepseek", installed, "1", "--as-with-amx")
    _check_latent_calls(found["calls"])
    assert found["tokens"] == own["tokens"]


@pytest.mark.parametrize("cache", ["fp8_e4m3", "fp8_ds_mla"])
def test_caches_of_latent_tokens_in_e4m3(cache: str, models: Path, installed: Path) -> None:
    """vLLM's own CPU backends have no such cache. What is decoded has another rounding."""
    plain = _run("generate", models / "deepseek", installed, "1")
    found = _run("generate", models / "deepseek", installed, "1", "--kv-cache-dtype", cache)
    assert found["calls"] == plain["calls"]
    for of_plain, tokens in zip(plain["tokens"], found["tokens"], strict=True):
        assert tokens[:2] == of_plain[:2] and len(tokens) == len(of_plain)


CHOICES = {
    "prefill": "FLASHATTN",
    "K and V": "FlashAttnImpl",
    "latent": "FlashAttnMLAImpl",
    "latent, e4m3": "FlashAttnMLAImpl",
    "latent, not causal": "FlashAttnMLAImpl",
    "chosen": "FlashAttnMLASparseImpl",
    "chosen, not causal": "['non-causal attention not supported']",
    "latent, e5m2": "['kv_cache_dtype not supported']",
    "latent, 512": "['head_size not supported']",
    "latent, window": "['sliding window not supported']",
    "latent, fp32": "['dtype not supported']",
    "latent, fp16 and e4m3": (
        "['a cache of fp8_ds_mla is read with a model of bfloat16, this one is of torch.float16']"
    ),
    "latent, DCP": "['DCP not supported']",
    "latent, PCP": "['PCP not supported']",
}


def test_vllms_cuda_platform_finds_what_a_layer_needs() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bindings/python")}
    command = [sys.executable, FOLDER / "vllm_choice.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == CHOICES


def _check_latent_calls(calls: dict[str, int]) -> None:
    """Each layer decodes as often as the others, and prompts came in all of them."""
    of_layers = [n for name, n in calls.items() if name != "any"]
    assert len(of_layers) == N_LATENT_LAYERS and len(set(of_layers)) == 1
    assert calls["any"] % N_LATENT_LAYERS == 0
    print(f"deepseek: {sum(of_layers)} calls for tokens, {calls['any']} for prompts")


def test_a_cache_of_e4m3(models: Path, installed: Path) -> None:
    """Tokens are not those of vLLM's own kernel, which is further from float64 of the same cache
    than rounding K and V is: test_o_over_a_cache_of_e4m3() has the figures."""
    found = _run("generate", models / "llama", installed, "1", "--kv-cache-dtype", "fp8_e4m3")
    _check_calls(found, 3, 3)
    assert len(found["tokens"]) == 5


# Prints the largest error of O by vLLM's kernel and by this library.
ERRORS = """
import torch
import vllm_times
from vllm import _custom_ops as ops
from flashattn.torch_ops import flash_attn_varlen_func, flash_kv_append

torch.manual_seed(0)
step = vllm_times.Step(vllm_times.Case(8, 2, 32, (97,), (97,)), torch.float32, "fp8_e4m3")
k, v = (x.to(torch.float8_e4m3fn).double().repeat_interleave(4, 1) for x in step.kv)
scores = torch.einsum("ihd,jhd->hij", step.q.double(), k) * 32**-0.5
scores = scores.masked_fill(torch.ones(97, 97).triu(1).bool(), -torch.inf)
expected = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
for call in (step.by_vllm(), step.by_library()):
    print(float((call().double() - expected).abs().max()))
"""


def test_o_over_a_cache_of_e4m3() -> None:
    paths = [str(FOLDER), str(ROOT / "bindings/python")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", ERRORS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    of_vllm, own = map(float, done.stdout.split()[-2:])
    print(f"largest error of O: vLLM's kernel {of_vllm:.1e}, the library {own:.1e}")
    assert own < 1e-5
