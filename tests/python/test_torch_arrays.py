"""numpy arrays as torch tensors and back, where torch is installed."""

from __future__ import annotations

import numpy as np
import pytest
from flashattn._tensor import numpy_dtype
from flashattn.cli import torch_arrays


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
def test_arrays_come_back(dtype: str) -> None:
    pytest.importorskip("torch")
    array = np.arange(-6, 6).reshape(3, 4).astype(numpy_dtype(dtype))
    tensor = torch_arrays.to_tensor(array)
    assert str(tensor.dtype) == f"torch.{dtype}" and tensor[0, 0].item() == -6
    again = torch_arrays.to_array(tensor)
    assert again.dtype == array.dtype and (again == array).all()
