"""The sources of a ggml: its internal headers, which no installation has."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

from . import _llama_cpp

# Programs that use ggml have its sources in one of these places.
_FOLDERS = ("", "ggml", "vendor/llama.cpp/ggml")
_DEFINITION = re.compile(r"-DGGML_MAX_NAME=\d+")
_MARK = "src/ggml-cpu/traits.h"
_HEADERS = re.compile(r"CMakeLists\.txt|include/[\w-]+\.h|src/[\w-]+\.h|src/ggml-cpu/[\w-]+\.h")


def find(source: Path) -> Path:
    """Returns ggml's folder in that of a program's sources. Raises FileNotFoundError."""
    for folder in _FOLDERS:
        if (source / folder / _MARK).is_file():
            return source / folder
    places = ", ".join(f"{folder or '.'}/{_MARK}" for folder in _FOLDERS)
    raise FileNotFoundError(f"{source} has no sources of a ggml: none of {places}")


def version(ggml: Path) -> str:
    """Returns the version that ggml's build gives itself. Raises ValueError."""
    text = (ggml / "CMakeLists.txt").read_text()
    numbers = [
        number
        for part in ("MAJOR", "MINOR", "PATCH")
        for number in re.findall(rf"set\(GGML_VERSION_{part} (\d+)\)", text)
    ]
    if len(numbers) != 3:
        raise ValueError(f"{ggml}/CMakeLists.txt does not say ggml's version")
    return ".".join(numbers)


def definitions(source: Path) -> list[str]:
    """Returns the flags by which a program makes the tensors of its ggml larger, as
    stable-diffusion.cpp does."""
    listing = source / "CMakeLists.txt"
    return sorted(set(_DEFINITION.findall(listing.read_text()))) if listing.is_file() else []


def download(folder: Path) -> Path:
    """Fetches the sources of the installed llama-cpp-python by pip, and returns ggml's folder with
    its headers alone. Raises ChildProcessError, FileNotFoundError, ImportError."""
    name, release = _llama_cpp.DISTRIBUTION, _llama_cpp.version().partition("+")[0]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", name, "--dest", str(folder), f"{name}=={release}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ChildProcessError(
            f"pip could not fetch the sources of {name} {release} ({' '.join(last)}): name a "
            "folder that has them by --source"
        )
    archive = next(folder.glob("*.tar.gz"))
    _unpack_headers(archive, folder)
    return find(folder)


def _unpack_headers(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            # sdists begin with a folder of their name and version
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            within = path.as_posix().partition("vendor/llama.cpp/ggml/")[2]
            data = tar.extractfile(member) if _HEADERS.fullmatch(within) else None
            if data is not None:
                (folder / "ggml" / within).parent.mkdir(parents=True, exist_ok=True)
                (folder / "ggml" / within).write_bytes(data.read())
