"""A plug-in of SGLang for tests. SGLang's model runs in a process of its own, which is killed: so
each call that a layer makes of this library is a line in a file, which the variable COUNTS
names."""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    """Counts the calls of backends that are made from now on."""
    from flashattn.sglang import NAME
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    make = ATTENTION_BACKENDS[NAME]

    def make_counted(runner: Any) -> Any:
        backend = make(runner)
        attend = backend._forward

        def counted(q: Any, k: Any, v: Any, layer: Any, batch: Any, *rest: Any) -> Any:
            with open(os.environ["COUNTS"], "a") as file:
                file.write(f"{layer.layer_id} {batch.forward_mode.name}\n")
            return attend(q, k, v, layer, batch, *rest)

        backend._forward = counted
        return backend

    ATTENTION_BACKENDS[NAME] = make_counted
