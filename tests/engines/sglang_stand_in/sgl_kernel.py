"""A stand-in for SGLang's kernels for CPUs, which are no package of PyPI: SGLang imports names of
drafts, of prefetching and of disaggregation from there, and calls none of them for what is tested.
Elsewhere it asks for the processor's features, finds none, and computes by torch."""

from __future__ import annotations

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} is called, and this is a stand-in")

    return missing
