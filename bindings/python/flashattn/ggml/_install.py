"""Builds the plug-in by the system's compiler."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from .. import _abi
from .._library import library
from . import _llama_cpp, _places, _sources


def install(source: str | os.PathLike[str] | None = None) -> Path:
    """Builds the plug-in for a ggml and this library, and returns its path, where enable() finds
    it: a folder of the user, named for both versions.

    source is the folder of the sources of a program that has ggml in it (llama.cpp, whisper.cpp,
    stable-diffusion.cpp, llama-cpp-python) or of ggml itself. None: those of the installed
    llama-cpp-python, which pip fetches.

    Raises ImportError (llama-cpp-python is not installed), FileNotFoundError (no sources in the
    folder, no compiler, a user without a folder), ValueError (sources of another version than that
    of llama-cpp-python), ChildProcessError (pip or the compiler failed, with its last words).
    """
    with tempfile.TemporaryDirectory() as folder:
        ggml = _sources.download(Path(folder)) if source is None else _sources.find(Path(source))
        definitions = [] if source is None else _sources.definitions(Path(source))
        version = _sources.version(ggml)
        if source is None and version != _llama_cpp.ggml_version():
            raise ValueError(
                f"the sources have ggml {version}, the installed {_llama_cpp.DISTRIBUTION} has "
                f"{_llama_cpp.ggml_version()}: name the sources that it was built of by --source"
            )
        path = _places.plugin(version)
        path.parent.mkdir(parents=True, exist_ok=True)
        _build([*_flags(ggml, version), *definitions], path)
    return path


def _build(flags: list[str], path: Path) -> None:
    new = path.with_suffix(".new")
    command = [*_compiler(), *flags, "-o", str(new), *_library_flags(path.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if "error" in line or "undefined" in line][:3]
        words = " ".join(errors or lines[-1:]) or f"it ended with {done.returncode}"
        raise ChildProcessError(f"{command[0]} could not build the plug-in: {words}")
    os.replace(new, path)


def _compiler() -> list[str]:
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise FileNotFoundError("there is no C++ compiler: install g++, or name one by CXX")


def _flags(ggml: Path, version: str) -> list[str]:
    """Those of bindings/ggml/CMakeLists.txt."""
    plugin, header = _places.sources()
    includes = [ggml / "include", ggml / "src", ggml / "src/ggml-cpu", header]
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags += [f'-DFLASHATTN_GGML_VERSION="{version}"', *(f"-I{folder}" for folder in includes)]
    return [*flags, *map(str, sorted(plugin.glob("*.cc")))]


def _library_flags(folder: Path) -> list[str]:
    """Links the loaded library. Programs that know nothing of the package find it by a link beside
    the plug-in, under the name that the plug-in asks for."""
    flags = ["-Wl,-z,nodelete", "-Wl,-z,defs", "-ldl"]
    loaded = Path(library()._name)
    if not loaded.is_absolute() and not loaded.is_file():
        return [f"-l:{loaded}", *flags]  # of the system's loader path
    link = folder / f"libflashattn.so.{_abi.FLASH_ABI_VERSION}"
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(loaded.resolve())
    return [str(loaded.resolve()), "-Wl,-rpath,$ORIGIN", *flags]
