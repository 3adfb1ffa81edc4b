"""Tensors in CUDA memory of any layout, with NaN around inputs and canaries around outputs."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import torch

# Layouts in which each row of d_head elements is 16-byte aligned, if d_head times their size is.
ALIGNED_LAYOUTS = ("contiguous", "padded", "heads_first")
UNALIGNED_LAYOUTS = ("padded_by_three", "shifted")
LAYOUTS = ALIGNED_LAYOUTS + UNALIGNED_LAYOUTS

_GUARD = 128  # elements on each side
_CANARY = 0x5A5A
_PADDING = {"padded": 16, "padded_by_three": 3}
_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "uint8": torch.uint8,  # bytes of latent tokens
    "latent_e4m3": torch.uint8,
}


def upload(values: np.ndarray, layout: str = "contiguous") -> torch.Tensor:
    """Copies the values to the current CUDA device in memory of a layout, with NaN in all gaps."""
    flat, tensor = _allocate(values.shape, torch_dtype(values.dtype.name), layout)
    fill_with_nan(flat)
    return tensor.copy_(_to_torch(values))


def fill_with_nan(tensor: torch.Tensor) -> None:
    """Makes all elements NaN; of bytes, latent tokens of NaN."""
    tensor.fill_(0xFF if tensor.dtype == torch.uint8 else float("nan"))


def allocate(shape: Sequence[int], dtype: str, layout: str) -> torch.Tensor:
    """Returns a tensor without values."""
    return _allocate(shape, torch_dtype(dtype), layout)[1]


def download(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return tensor.numpy()


def lengths(values: Sequence[int] | None) -> torch.Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.int32, device="cuda")


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


class Guarded:
    """An output with NaN in every element, and canaries around and between them."""

    def __init__(self, shape: Sequence[int], dtype: str, layout: str = "contiguous") -> None:
        self._flat, self.tensor = _allocate(tuple(shape), torch_dtype(dtype), layout)
        self._flat.view(torch.int16).fill_(_CANARY)
        self.tensor.fill_(float("nan"))
        self._poisoned = self._flat.clone()

    def take(self) -> np.ndarray:
        """Returns the values, after asserting that nothing but the elements was written."""
        values = download(self.tensor)
        self.tensor.fill_(float("nan"))
        changed = self._flat.view(torch.int16) != self._poisoned.view(torch.int16)
        outside = int(changed.sum())
        assert outside == 0, f"{outside} halfwords outside the output were written"
        return values

    def assert_untouched(self) -> None:
        assert torch.equal(self._flat.view(torch.int16), self._poisoned.view(torch.int16))


def _allocate(
    shape: Sequence[int], dtype: torch.dtype, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (all elements, the tensor within them); the innermost axis is contiguous."""
    axes = list(range(len(shape)))
    if layout == "heads_first":
        axes[-3], axes[-2] = axes[-2], axes[-3]
    strides, step = [0] * len(shape), 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= shape[axis]
        if axis == axes[-1]:
            step += _PADDING.get(layout, 0)
    offset = _GUARD + (1 if layout == "shifted" else 0)
    flat = torch.empty(step + 2 * _GUARD + 8, dtype=dtype, device="cuda")
    return flat, flat.as_strided(tuple(shape), strides, offset)


def _to_torch(values: np.ndarray) -> torch.Tensor:
    values = np.ascontiguousarray(values)
    dtype = torch_dtype(values.dtype.name)
    if values.dtype.isbuiltin == 1:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(f"i{values.itemsize}")).view(dtype)
