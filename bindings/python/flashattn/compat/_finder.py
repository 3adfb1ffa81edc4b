"""This module lets import statements find flash_attn and flash_attn_interface where these are not
installed.

The finder is the last of sys.meta_path, so that every other one is asked first: an installed
flash_attn always wins. Its modules hold the functions of this package and nothing else; every other
name raises ImportError, as a name that does not exist would.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HERE = __package__
_FA2 = {
    "flash_attn": f"{_HERE}.fa2",
    "flash_attn.flash_attn_interface": f"{_HERE}.fa2",
    "flash_attn.bert_padding": f"{_HERE}.bert_padding",
}
_FA3 = {
    "flash_attn_interface": f"{_HERE}.fa3",
    "flash_attn_3": f"{_HERE}.fa3",
    "flash_attn_3.flash_attn_interface": f"{_HERE}.fa3",
    "flash_attn_3._C": f"{_HERE}._fa3_ops",
}
_PACKAGES = {"flash_attn": "2.8.3", "flash_attn_3": "3.0.0"}  # the values are versions


def install(fa2: bool = True, fa3: bool = False) -> None:
    """Makes imports find this package's functions under flash-attn's names, where flash-attn is not
    installed. A second call adds to what the first one made.

    fa2   flash_attn, flash_attn.flash_attn_interface, flash_attn.bert_padding
    fa3   flash_attn_interface, flash_attn_3.flash_attn_interface, and flash_attn_3._C, whose import
          defines torch.ops.flash_attn_3.fwd
    """
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.append(finder)
    finder.sources.update({**(_FA2 if fa2 else {}), **(_FA3 if fa3 else {})})


def uninstall() -> None:
    """Undoes install(): later imports of these names fail, or find another installation. What was
    imported before goes on working, and torch.ops.flash_attn_3.fwd stays once it is defined."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in (*_FA2, *_FA3):
        if _is_ours(sys.modules.get(name)):
            del sys.modules[name]


class _Finder(MetaPathFinder, Loader):
    """Finds modules under flash-attn's names. `sources` maps each name to the module whose public
    names it has."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        parent = fullname.rpartition(".")[0]
        if fullname not in self.sources or (parent and not _is_ours(sys.modules.get(parent))):
            return None
        return ModuleSpec(fullname, self, origin=_HERE, is_package=fullname in _PACKAGES)

    def exec_module(self, module: ModuleType) -> None:
        source = importlib.import_module(self.sources[module.__name__])
        names = {name: getattr(source, name) for name in source.__all__}
        vars(module).update(names, __all__=source.__all__, __doc__=source.__doc__)
        if module.__name__ in _PACKAGES:
            module.__version__ = _PACKAGES[module.__name__]


def _is_ours(module: ModuleType | None) -> bool:
    spec = getattr(module, "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _Finder)
