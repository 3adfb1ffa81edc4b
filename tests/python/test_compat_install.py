"""flashattn.compat.install: imports of flash_attn find this package's functions, and any installed
flash_attn comes first."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import flashattn.compat
import pytest
from subprocesses import run_python

NAMES = ("flash_attn", "flash_attn_interface", "flash_attn_3")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in NAMES), reason="flash-attn is installed"
)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = list(sys.meta_path)
    yield
    flashattn.compat.uninstall()
    for name in list(sys.modules):
        if name.partition(".")[0] in NAMES:
            del sys.modules[name]
    assert sys.meta_path == before


def test_nothing_happens_on_import() -> None:
    code = """
import sys, importlib.util
import flashattn, flashattn.compat
assert "torch" not in sys.modules
assert not any(map(importlib.util.find_spec, ("flash_attn", "flash_attn_interface")))
flashattn.compat.install(fa3=True)
assert all(map(importlib.util.find_spec, ("flash_attn", "flash_attn_interface")))
assert "torch" not in sys.modules
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


def test_flash_attn_and_its_modules() -> None:
    pytest.importorskip("torch")
    from flashattn.compat import bert_padding, fa2

    flashattn.compat.install()
    import flash_attn
    from flash_attn import flash_attn_func
    from flash_attn.bert_padding import pad_input
    from flash_attn.flash_attn_interface import flash_attn_varlen_func

    assert flash_attn.__version__ == "2.8.3"
    assert flash_attn_func is fa2.flash_attn_func and pad_input is bert_padding.pad_input
    assert flash_attn_varlen_func is fa2.flash_attn_varlen_func
    assert [name for name in fa2.__all__ if not hasattr(flash_attn, name)] == []
    with pytest.raises(ModuleNotFoundError, match="flash_attn_interface"):
        importlib.import_module("flash_attn_interface")


def test_flash_attn_interface() -> None:
    pytest.importorskip("torch")
    from flashattn.compat import fa3

    flashattn.compat.install(fa2=False, fa3=True)
    from flash_attn_interface import flash_attn_func, get_scheduler_metadata

    assert flash_attn_func is fa3.flash_attn_func
    assert get_scheduler_metadata is fa3.get_scheduler_metadata
    again = importlib.import_module("flash_attn_3.flash_attn_interface")
    assert again.flash_attn_with_kvcache is fa3.flash_attn_with_kvcache
    assert sys.modules["flash_attn_3"].__version__ == "3.0.0"
    with pytest.raises(ModuleNotFoundError, match="No module named 'flash_attn'"):
        importlib.import_module("flash_attn")


def test_what_is_not_there_cannot_be_imported() -> None:
    pytest.importorskip("torch")
    flashattn.compat.install(fa3=True)
    with pytest.raises(ImportError, match="cannot import name 'flash_attn_unpadded_func'"):
        from flash_attn.flash_attn_interface import flash_attn_unpadded_func  # noqa: F401
    for name in ("flash_attn.layers.rotary", "flash_attn.ops", "flash_attn.cute"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn")


def test_uninstall_takes_it_back() -> None:
    pytest.importorskip("torch")
    flashattn.compat.install(fa2=False, fa3=True)
    importlib.import_module("flash_attn_interface")
    flashattn.compat.install()
    importlib.import_module("flash_attn.bert_padding")
    importlib.import_module("flash_attn_3.flash_attn_interface")
    flashattn.compat.uninstall()
    flashattn.compat.uninstall()
    for name in (*NAMES, "flash_attn.bert_padding", "flash_attn_3.flash_attn_interface"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_an_installed_flash_attn_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn/__init__.py").write_text("__version__ = '9'\n")
    (tmp_path / "flash_attn_interface.py").write_text("real = True\n")
    flashattn.compat.install(fa3=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("flash_attn").__version__ == "9"
    assert importlib.import_module("flash_attn_interface").real
    with pytest.raises(ModuleNotFoundError):  # nor are its missing modules filled in
        importlib.import_module("flash_attn.bert_padding")
    flashattn.compat.uninstall()
    assert "flash_attn" in sys.modules


def test_a_namespace_of_flash_attn_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn/cute").mkdir(parents=True)
    (tmp_path / "flash_attn/cute/__init__.py").write_text("")
    flashattn.compat.install()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("flash_attn.cute")
    with pytest.raises(ImportError):
        from flash_attn import flash_attn_func  # noqa: F401
