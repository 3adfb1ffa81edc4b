"""Loading the library, and the package's promises about itself."""

import re
from pathlib import Path

import absent_device
import flashattn
import pytest
from flashattn import cli
from flashattn._library import library
from flashattn.cli import extras
from subprocesses import run_python

PACKAGE = Path(flashattn.__file__).parent


def test_an_exact_path_has_no_fallback(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.so", tmp_path):
        result = run_python(
            "-c", "import flashattn; flashattn.version()", FLASHATTN_LIBRARY=str(path)
        )
        assert result.returncode == 1
        assert (
            "ImportError: cannot load libflashattn" in result.stderr and str(path) in result.stderr
        )


def test_another_library_is_refused() -> None:
    code = "import flashattn; flashattn.version()"
    result = run_python("-c", code, FLASHATTN_LIBRARY="libm.so.6")
    assert "ImportError: libm.so.6 has no flash_status_string" in result.stderr


def test_another_abi_is_refused() -> None:
    code = "import flashattn; flashattn._abi.FLASH_ABI_VERSION = 7; flashattn.version()"
    result = run_python("-c", code)
    assert re.search("ImportError: .* has ABI version 0, this package needs 7", result.stderr)


def test_another_minor_version_is_refused_while_the_abi_is_0() -> None:
    code = "import flashattn; flashattn._abi.FLASH_VERSION_NUMBER += {}; flashattn.version()"
    result = run_python("-c", code.format(100))
    assert re.search("ImportError: .* has version 0.2, .* package needs 0.3", result.stderr)
    assert run_python("-c", code.format(1)).returncode == 0  # another patch


def test_import_needs_no_library_and_the_oracle_neither() -> None:
    code = """
import sys
import flashattn, flashattn.oracle, flashattn.compare, numpy as np
x = np.ones((1, 2, 1, 4)); assert (flashattn.oracle.attention(x, x, x)[0] == 1).all()
assert not {"jax", "torch", "rich", "matplotlib", "ml_dtypes"} & set(sys.modules)
"""
    assert run_python("-c", code, FLASHATTN_LIBRARY="/absent.so").returncode == 0


def test_version_is_the_headers() -> None:
    header = (PACKAGE.parents[2] / "include" / "flashattn.h").read_text()
    parts = re.findall(r"#define FLASH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert flashattn.version() == ".".join(parts)
    major, minor, patch = map(int, parts)
    assert library().flash_version_number() == 10000 * major + 100 * minor + patch


def test_dunder_version_is_the_librarys() -> None:
    assert flashattn.__version__ == flashattn.version()
    assert not hasattr(flashattn, "__wersion__")


def test_pyproject_names_the_program_and_its_extras() -> None:
    text = (PACKAGE.parents[2] / "pyproject.toml").read_text()
    module, function = re.search(r'(?m)^flashattn = "([\w.]+):(\w+)"$', text).groups()
    assert (module, function) == (cli.__name__, cli.main.__name__)
    listed = re.search(r"(?m)^cli = \[(.*)\]$", text)[1]
    assert tuple(re.findall(r'"(\w+)', listed)) == extras.OF_CLI


@pytest.mark.parametrize("name", flashattn.__all__)
def test_everything_public_is_documented(name: str) -> None:
    documented = getattr(flashattn, name)
    assert documented.__doc__ and not documented.__doc__.startswith(f"{name}(")


def test_device_numbers() -> None:
    assert flashattn.device_info().device == 0 and flashattn.device_info().name
    for no_kind in (-1, 1, 0x20000):
        with pytest.raises(ValueError, match=f"device is {no_kind & 0xFFFFFFFF:#x}"):
            flashattn.device_info(no_kind)
    with pytest.raises(flashattn.FlashAttnError, match=absent_device.MESSAGE):
        flashattn.device_info(absent_device.NUMBER)
