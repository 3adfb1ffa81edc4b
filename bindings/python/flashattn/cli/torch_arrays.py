"""numpy arrays as torch tensors and back. torch and numpy do not know each other's bfloat16: it
goes as 16-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _tensor
from . import extras


def to_tensor(array: np.ndarray, device: str = "cpu") -> Any:
    """A tensor on the device. On the CPU it shares the array's memory, which should be writable:
    torch warns of any other."""
    torch = extras.load("torch")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def to_array(tensor: Any) -> np.ndarray:
    torch = extras.load("torch")
    if tensor.dtype == torch.bfloat16:
        bits = tensor.cpu().view(torch.int16).numpy()
        return bits.view(_tensor.numpy_dtype("bfloat16"))
    return tensor.cpu().numpy()
