"""Where K and V lie, and where attention runs: numpy's arrays in fp32 on the CPU, or the tensors of
torch in fp16 on a CUDA device, whose kernels are for 16 bits.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from demo_support import why_no_gpu


class Arrays(Protocol):
    name: str
    tolerance: float  # of the model's logits

    def empty(self, shape: tuple[int, ...]) -> Any: ...

    def put(self, x: np.ndarray) -> Any:
        """x as an array of this kind; floats are rounded to its type."""

    def send(self, x: np.ndarray) -> Any:
        """x as an array of this kind, but of its own type."""

    def get(self, x: Any) -> np.ndarray:
        """x in numpy, in fp32."""

    def wait(self) -> None:
        """Returns when the calls so far are done."""


class HostArrays:
    name = "fp32 on the CPU"
    tolerance = 2e-3

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.empty(shape, np.float32)

    def put(self, x: np.ndarray) -> np.ndarray:
        return x

    def send(self, x: np.ndarray) -> np.ndarray:
        return x

    def get(self, x: np.ndarray) -> np.ndarray:
        return x

    def wait(self) -> None:
        pass


class TorchArrays:
    tolerance = 0.2

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        self.device = device
        self.name = f"fp16 on {device}"

    def empty(self, shape: tuple[int, ...]) -> Any:
        return self.torch.empty(shape, dtype=self.torch.float16, device=self.device)

    def put(self, x: np.ndarray) -> Any:
        tensor = self.send(x)
        return tensor.half() if tensor.is_floating_point() else tensor

    def send(self, x: np.ndarray) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

    def get(self, x: Any) -> np.ndarray:
        return x.float().cpu().numpy()

    def wait(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()


def preferred_arrays() -> Arrays:
    return HostArrays() if why_no_gpu() else TorchArrays("cuda")
