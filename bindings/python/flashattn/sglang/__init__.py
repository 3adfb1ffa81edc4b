"""This package computes the attention of SGLang by libflashattn, as an attention backend of
SGLang's own registry. SGLang finds register() by an entry point of the wheel, in each of its
processes.

    python -m sglang.launch_server --model-path MODEL --attention-backend flashattn [--device cpu]

docs/guides/sglang.md says which models are served, and what is refused. Importing this package
imports neither torch nor SGLang.
"""

from __future__ import annotations

NAME = "flashattn"  # of the backend, on SGLang's command line


def register() -> None:
    """Puts the backend into SGLang's registry, and its name among those that --attention-backend
    takes, also for deterministic inference. A second call changes nothing.

    SGLang calls this wherever the wheel is installed. It logs an exception, and starts without the
    backend. Raises ImportError if SGLang has no registry that is known here.
    """
    from . import _registry

    _registry.register(NAME)
