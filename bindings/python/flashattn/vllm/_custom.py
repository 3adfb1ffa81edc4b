"""This module has what vLLM finds under its backend's name CUSTOM on CUDA devices: the backend that
a layer needs, one for K and V, one for latent tokens (MLA), one for chosen latent tokens.

vLLM has one slot for other people's backends. It looks the class up for each kind of layer, asks it
whether it serves that, and then for its full name, by which the class is imported.
"""

from __future__ import annotations

from typing import Any


def _backend_for(use_mla: bool, use_sparse: bool) -> Any:
    if use_mla and use_sparse:
        from ._mla_sparse_backend import FlashAttnMLASparseBackend as backend
    elif use_mla:
        from ._mla_backend import FlashAttnMLABackend as backend
    else:
        from ._backend import FlashAttnBackend as backend
    return backend


class _Choice:
    """Is one look-up of the name. Until vLLM has said what it needs, it is the backend for K and
    V."""

    def __init__(self) -> None:
        self._backend = _backend_for(False, False)

    def validate_configuration(
        self, *, use_mla: bool = False, use_sparse: bool = False, **given: Any
    ) -> list[str]:
        self._backend = _backend_for(use_mla, use_sparse)
        return self._backend.validate_configuration(use_mla=use_mla, use_sparse=use_sparse, **given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def __getattr__(name: str) -> Any:
    if name != "Backend":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return _Choice()
