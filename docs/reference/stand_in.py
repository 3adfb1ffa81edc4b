"""Stands in for torch while docstrings are read, since torch is too large to install for a page.
Its types are classes without anything in them. Everything else can be called, and does nothing.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


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


def install() -> None:
    sys.meta_path.insert(0, Finder())
