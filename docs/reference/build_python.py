"""Builds the reference of the Python API from the docstrings, by pdoc:

    PYTHONPATH=bindings/python python3 docs/reference/build_python.py FOLDER

pdoc imports what it describes. Modules that need torch get a stand-in for it, since torch is too
large to install for a page: its types are classes without anything in them, and everything else of
it can be called, and does nothing.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pdoc

MODULES = (
    "flashattn",
    "flashattn.torch_ops",
    "flashattn.sdpa",
    "flashattn.hf",
    "flashattn.compat",
    "flashattn.compat.fa2",
    "flashattn.compat.fa3",
    "flashattn.compat.bert_padding",
)


class StandIn(ModuleType):
    """A module of torch. Its path makes it a package."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("Tensor", "dtype", "device"):  # which annotations name
            value: Any = type(name, (), {"__module__": self.__name__})
        else:
            value = MagicMock()
            value.__repr__ = lambda _: f"{self.__name__}.{name}"  # as a default in a signature
        setattr(self, name, value)
        return value


class Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.split(".")[0] == "torch" else None

    def create_module(self, spec: ModuleSpec) -> StandIn:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def main(folder: Path) -> None:
    sys.meta_path.insert(0, Finder())
    pdoc.render.configure(template_directory=Path(__file__).parent / "pdoc")
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
