"""The plug-in for ggml, as far as it can be tested without one: which versions it refuses, and what
flashattn.ggml says of installations that cannot work. tests/engines/ runs it in llama.cpp."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import flashattn
import flashattn.ggml
import pytest
from complaints import assert_complains
from flashattn.cli import main
from flashattn.ggml import _llama_cpp, _places, _sources
from subprocesses import run_python

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "bindings/ggml"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("CXX", "LLAMA_CPP_LIB_PATH"):
        monkeypatch.delenv(name, raising=False)


# ---- Which ggml and which library fit ----

DRIVER = """
#include "fit.h"
#include <cstdio>
#include <cstdlib>
#include <string>
using namespace flashattn_ggml;
int main(int, char **argv) {
    const std::string what = argv[1];
    const int a = std::atoi(argv[3]), b = std::atoi(argv[4]);
    const std::string words =
        what == "ggml" ? misfit({"0.25.3", 2, 336, "FLASH_ATTN_EXT"},
                                {argv[2], a, static_cast<std::size_t>(b), argv[5]})
                       : library_misfit(std::atoi(argv[2]), a, b, std::atoi(argv[5]));
    std::puts(words.c_str());
}
"""


@pytest.fixture(scope="module")
def misfit(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Returns a function that asks the plug-in's own check for its words."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "driver.cc").write_text(DRIVER)
    program = folder / "driver"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{PLUGIN}", "-o", program]
    subprocess.run([*command, folder / "driver.cc", PLUGIN / "fit.cc"], check=True)

    def ask(*facts: object) -> str:
        words = [program, *map(str, facts)]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    return ask


@needs_compiler
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (("0.25.3", 2, 336, "FLASH_ATTN_EXT"), ""),
        (
            ("0.24.0", 1, 300, "ADD"),
            "ggml's version is 0.24.0, this plug-in was built for 0.25.3",
        ),
        (
            ("0.25.3", 3, 336, "FLASH_ATTN_EXT"),
            "ggml's backend API version is 3, this plug-in was built for 2",
        ),
        (
            ("0.25.3", 2, 344, "FLASH_ATTN_EXT"),
            "the size of ggml's tensor struct is 344, this plug-in was built for 336",
        ),
        (
            ("0.25.3", 2, 336, "FLASH_ATTN_BACK"),
            "the operation of FLASH_ATTN_EXT's number is FLASH_ATTN_BACK, this plug-in was built "
            "for FLASH_ATTN_EXT",
        ),
    ],
)
def test_another_ggml_is_refused(misfit, facts, words) -> None:
    assert misfit("ggml", *facts) == words


@needs_compiler
@pytest.mark.parametrize(
    ("built", "loaded", "words"),
    [
        ((0, 200), (0, 209), ""),
        ((1, 10000), (1, 10200), ""),
        ((0, 200), (0, 300), "libflashattn's version is 0.3.0, this plug-in was built for 0.2.0"),
        ((0, 200), (1, 200), "libflashattn's ABI version is 1, this plug-in was built for 0"),
    ],
)
def test_another_library_is_refused(misfit, built, loaded, words) -> None:
    assert misfit("library", *built, *loaded) == words


# ---- Installing ----


def test_cmake_and_the_package_build_the_same_files() -> None:
    listed = re.findall(r"^    (\w+\.cc)\b", (PLUGIN / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in PLUGIN.glob("*.cc"))
    assert _places.sources()[0] == PLUGIN


def make_sources(folder: Path, version: str = "0.25.3", traits: str = "") -> Path:
    """Makes what looks like the sources of a ggml."""
    for name in ("include", "src/ggml-cpu"):
        (folder / name).mkdir(parents=True)
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
    text = "".join(f"set(GGML_VERSION_{part} {number})\n" for part, number in numbers)
    (folder / "CMakeLists.txt").write_text(text)
    (folder / "src/ggml-cpu/traits.h").write_text(traits)
    return folder


def install(folder: Path) -> int:
    return main(["ggml", "install", "--source", str(folder)])


def test_a_folder_without_sources_is_refused(tmp_path: Path, capsys) -> None:
    code = install(tmp_path)
    assert_complains(capsys, code, str(tmp_path), "no sources of a ggml", "src/ggml-cpu/traits.h")


def test_sources_without_a_version_are_refused(tmp_path: Path, capsys) -> None:
    (make_sources(tmp_path / "ggml") / "CMakeLists.txt").write_text("project(ggml)\n")
    assert_complains(capsys, install(tmp_path), "does not say ggml's version")


@pytest.mark.parametrize("above", ["ggml", "vendor/llama.cpp/ggml", "."])
def test_sources_are_found_in_those_of_programs(tmp_path: Path, above: str) -> None:
    ggml = make_sources(tmp_path / above, "1.2.3")
    assert _sources.find(tmp_path).resolve() == ggml.resolve()
    assert _sources.version(ggml) == "1.2.3"


def test_definitions_of_programs_are_followed(tmp_path: Path) -> None:
    assert _sources.definitions(tmp_path) == []
    listing = tmp_path / "CMakeLists.txt"
    listing.write_text("add_definitions(-DGGML_USE_CPU)\nadd_definitions(-DGGML_MAX_NAME=128)\n")
    assert _sources.definitions(tmp_path) == ["-DGGML_MAX_NAME=128"]


def test_a_machine_without_a_compiler_is_told_so(tmp_path: Path, capsys, monkeypatch) -> None:
    make_sources(tmp_path / "ggml")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_complains(capsys, install(tmp_path), "no C++ compiler", "CXX")


@needs_compiler
def test_what_the_compiler_says_is_passed_on(tmp_path: Path, capsys) -> None:
    """And nothing is installed."""
    make_sources(tmp_path / "ggml", traits='#error "not this ggml"\n')
    assert_complains(capsys, install(tmp_path), "could not build the plug-in", "error")
    assert not _places.plugin("0.25.3").exists()


def test_a_compiler_that_says_nothing(tmp_path: Path, capsys, monkeypatch) -> None:
    make_sources(tmp_path / "ggml")
    monkeypatch.setenv("CXX", "false")
    assert_complains(capsys, install(tmp_path), "false could not build the plug-in", "ended with 1")


def test_a_relative_folder_of_data_is_ignored(tmp_path: Path, monkeypatch) -> None:
    """As the convention of the variable has it: it would be another one in each folder."""
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _places.plugin("1.2.3").is_relative_to(tmp_path / ".local/share/flashattn/ggml")


def test_a_user_without_a_folder_is_told_so(tmp_path: Path, capsys, monkeypatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    make_sources(tmp_path / "ggml")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(_places.Path, "home", homeless)
    assert_complains(capsys, install(tmp_path), "set XDG_DATA_HOME")


def test_llama_cpp_python_is_needed_without_sources(capsys, monkeypatch) -> None:
    def absent(_: str) -> str:
        raise _llama_cpp.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(_llama_cpp.importlib.metadata, "version", absent)
    assert_complains(capsys, main(["ggml", "install"]), "llama-cpp-python is not installed")


def make_pip(folder: Path, body: str) -> None:
    """A program that stands for pip."""
    (folder / "pip").mkdir()
    (folder / "pip/__init__.py").touch()
    (folder / "pip/__main__.py").write_text(body)


def download(path: Path) -> subprocess.CompletedProcess:
    code = f"""
from pathlib import Path
from flashattn.ggml import _llama_cpp, _sources
_llama_cpp.version = lambda: "0.3.36+cpu"
print(_sources.version(_sources.download(Path({str(path / "to")!r}))))
"""
    (path / "to").mkdir()
    package = Path(flashattn.__file__).parents[1]
    return run_python("-c", code, PYTHONPATH=f"{path}:{package}")


def test_pip_is_asked_for_the_sources_of_that_version(tmp_path: Path) -> None:
    """Only headers are unpacked."""
    ggml = make_sources(tmp_path / "vendor/llama.cpp/ggml", "0.25.3")
    (ggml / "src/ggml.c").write_text("int x;")
    with tarfile.open(tmp_path / "sources.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "vendor", "llama_cpp_python-0.3.36/vendor")
    make_pip(
        tmp_path,
        f"""
import shutil, sys
assert sys.argv[1] == "download" and sys.argv[-1] == "llama-cpp-python==0.3.36", sys.argv
shutil.copy({str(tmp_path / "sources.tar.gz")!r}, sys.argv[sys.argv.index("--dest") + 1])
""",
    )
    done = download(tmp_path)
    assert done.stdout == "0.25.3\n", done.stderr
    unpacked = {path.name for path in (tmp_path / "to/ggml").rglob("*") if path.is_file()}
    assert unpacked == {"CMakeLists.txt", "traits.h"}


def test_what_pip_says_is_passed_on(tmp_path: Path) -> None:
    make_pip(tmp_path, 'import sys; sys.exit("ERROR: no such thing")')
    last = download(tmp_path).stderr.splitlines()[-1]
    assert last.startswith("ChildProcessError: pip could not fetch the sources of llama-cpp-python")
    assert "0.3.36 (ERROR: no such thing)" in last and "--source" in last


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
@pytest.mark.parametrize(
    ("with_ggml", "words"),
    [(False, "needs FLASH_GGML"), (True, "needs a library with CUDA kernels")],
)
def test_the_library_for_cuda_is_not_left_out(tmp_path: Path, with_ggml: bool, words: str) -> None:
    """An option that can have no effect ends CMake."""
    ggml = f"-DFLASH_GGML={make_sources(tmp_path / 'ggml')}"
    options = ["-DFLASH_CUDA=OFF", "-DFLASH_GGML_CUDA=ON", *([ggml] if with_ggml else [])]
    command = ["cmake", "-S", ROOT, "-B", tmp_path / "build", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and words in " ".join(done.stderr.split())


# ---- Enabling ----

FAKE_BASE = 'const char *ggml_version(void) { return "9.8.7"; }'
FAKE_GGML = "void *ggml_backend_load(const char *path) { (void)path; return 0; }"
FAKE_PLUGIN = 'const char *flashattn_ggml_refusal(void) { return "it is Friday"; }'


def compile_library(source: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, check=True, text=True)


@pytest.fixture
def fake_llama_cpp(tmp_path: Path) -> Path:
    """Makes a package llama_cpp whose ggml loads no plug-in, and returns the folder above it."""
    package = tmp_path / "site/llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def llama_backend_init(): pass\n")
    compile_library(FAKE_BASE, package / "lib/libggml-base.so")
    compile_library(FAKE_GGML, package / "lib/libggml.so")
    return package.parent


def enable(site: Path) -> str:
    """Returns the last line of what is said."""
    package = Path(flashattn.__file__).parents[1]
    code = "import flashattn.ggml; flashattn.ggml.enable()"
    done = run_python("-c", code, PYTHONPATH=f"{site}:{package}")
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_no_llama_cpp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_llama_cpp.importlib.sys.modules, "llama_cpp", None)
    with pytest.raises(ImportError, match="llama-cpp-python is not installed"):
        flashattn.ggml.enable()


def test_a_llama_cpp_without_a_ggml_is_named(fake_llama_cpp: Path) -> None:
    (fake_llama_cpp / "llama_cpp/lib/libggml-base.so").unlink()
    last = enable(fake_llama_cpp)
    assert last.startswith("ImportError: llama-cpp-python's ggml does not say its version")


@pytest.mark.parametrize("version", ["0", '"\\xff"', '"../../x"', '""'])
def test_a_ggml_with_a_strange_version_is_named(fake_llama_cpp: Path, version: str) -> None:
    source = FAKE_BASE.replace('"9.8.7"', version)
    compile_library(source, fake_llama_cpp / "llama_cpp/lib/libggml-base.so")
    last = enable(fake_llama_cpp)
    assert last.startswith("ImportError: llama-cpp-python's ggml says that its version is b'")


def test_a_plugin_that_is_not_there_is_named_with_the_command(fake_llama_cpp: Path) -> None:
    last = enable(fake_llama_cpp)
    assert last.startswith("FileNotFoundError: there is no plug-in for ggml 9.8.7 and flashattn")
    assert str(_places.plugin("9.8.7")) in last
    assert "python -m flashattn ggml install" in last


def test_why_ggml_refuses_is_passed_on(fake_llama_cpp: Path) -> None:
    compile_library(FAKE_PLUGIN, _places.plugin("9.8.7"))
    last = enable(fake_llama_cpp)
    assert last.startswith("ImportError: ggml did not load ") and last.endswith(": it is Friday")
