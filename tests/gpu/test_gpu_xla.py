"""The handlers of XLA's custom calls on a CUDA device, without XLA: the bits of the functions for
all arrays, in a CUDA graph too, and errors in the library's words."""

from __future__ import annotations

import flashattn
import numpy as np
import pytest
import torch
import xla_frames
from flashattn import _abi
from flashattn._argument_list import ARRAYS
from xla_frames import HandlerError

OPERANDS = ("q", "k", "v", *ARRAYS)
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "sinks": {"causal": True, "sinks": (0.5, -1.0, 2.0, 0.0)},
    "slopes": {"alibi_slopes": (0.5, 0.25, 0.1, 0.0)},
    "lengths": {"seqused_k": (90, 33)},
}
MEGABYTES = 8 << 20  # more than any of these calls works in


class Call:
    """Holds a call's tensors, and what a custom call says of them."""

    def __init__(self, options: dict[str, object], d_head: int = 64) -> None:
        torch.manual_seed(0)
        self.q, self.d_o = (self._random(70, 4, d_head) for _ in range(2))
        self.k, self.v = (self._random(90, 2, d_head) for _ in range(2))
        types = {"seqused_k": torch.int32}
        self.options = {
            name: torch.tensor(x, dtype=types.get(name, torch.float32), device="cuda")
            if isinstance(x, tuple)
            else x
            for name, x in options.items()
        }
        arrays = [name for name in OPERANDS if isinstance(self.options.get(name), torch.Tensor)]
        self.operands = [self.q, self.k, self.v, *(self.options[name] for name in arrays)]
        bits = sum(1 << OPERANDS.index(name) for name in ("q", "k", "v", *arrays))
        flags = _abi.FLASH_FLAG_CAUSAL if options.get("causal") else 0
        self.attributes = {"operands": np.int64(bits), "flags": np.int64(flags)}
        self.workspace = torch.empty(MEGABYTES, dtype=torch.uint8, device="cuda")
        self.o = torch.empty_like(self.q)
        self.lse = torch.empty(2, 4, 70, device="cuda")

    @staticmethod
    def _random(*shape: int) -> torch.Tensor:
        return torch.randn(2, *shape, device="cuda", dtype=torch.bfloat16)

    def forward(self) -> None:
        results = self.o, self.lse, self.workspace
        xla_frames.call("flash_xla_forward_cuda", self.operands, results, self.attributes)

    def gradients(self, **options: object) -> list[torch.Tensor]:
        """Returns the gradients of q, k, v and sinks, if there are any."""
        sinks = self.options.get("sinks")
        inputs = (self.q, self.k, self.v, *(() if sinks is None else (sinks,)))
        results = [torch.full_like(x, 7) for x in inputs]
        xla_frames.call(
            "flash_xla_backward_cuda",
            [*self.operands, self.o, self.lse, self.d_o],
            [*results, self.workspace],
            self.attributes,
            **options,
        )
        return results


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_results_are_those_of_the_functions(options: dict[str, object]) -> None:
    call = Call(options)
    call.forward()
    tensors = call.q, call.k, call.v
    o, lse = flashattn.flash_attn_func(*tensors, return_lse=True, **call.options)
    assert torch.equal(call.o, o) and torch.equal(call.lse, lse)


@pytest.mark.parametrize("d_head", [64, 50])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_are_those_of_the_functions(options: dict[str, object], d_head: int) -> None:
    """Rows of 50 columns are copied to the workspace."""
    call = Call(options, d_head)
    call.forward()
    found = call.gradients()
    wanted = flashattn.flash_attn_backward(
        call.d_o, call.q, call.k, call.v, call.o, call.lse, **call.options
    )
    for x, y in zip(found, wanted):
        assert bool(y.any()) and torch.equal(x, y)


def test_a_graph_of_gradients() -> None:
    """XLA records calls in command buffers, after the stage `initialize`."""
    call = Call(OPTIONS["causal"])
    call.forward()
    wanted = call.gradients()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call.gradients(stages=(xla_frames.EXECUTE,))
    for x in found:
        x.zero_()
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(found, wanted))


def test_a_small_workspace_is_refused() -> None:
    call = Call({})
    call.workspace = call.workspace[:16]
    with pytest.raises(HandlerError, match="workspace"):
        call.gradients()


def test_what_has_no_kernel_is_refused() -> None:
    call = Call({}, d_head=264)
    with pytest.raises(HandlerError, match="d_head"):
        call.gradients()
