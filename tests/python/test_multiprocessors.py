"""n_multiprocessors from Python, where it is refused: the CPU has none."""

from __future__ import annotations

import flashattn
import numpy as np
import pytest

X = np.ones((1, 4, 2, 16), np.float32)
RAGGED = {"cu_seqlens_q": [0, 4], "cu_seqlens_k": [0, 4], "max_seqlen_q": 4, "max_seqlen_k": 4}


@pytest.mark.parametrize(
    "number, words",
    [
        (4, "n_multiprocessors is 4, and device is 0x0, not a CUDA device"),
        (-1, "n_multiprocessors is -1: not within 0 ... 2147483647"),
        (2**31, "n_multiprocessors is 2147483648: not within"),
        (2**40, "n_multiprocessors is 1099511627776: not within"),
        (1.5, "n_multiprocessors is 1.5: not an integer"),
    ],
)
def test_a_number_on_the_cpu_is_refused(number: float, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        flashattn.flash_attn_func(X, X, X, n_multiprocessors=number)
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        flashattn.flash_attn_varlen_func(X[0], X[0], X[0], **RAGGED, n_multiprocessors=number)


def test_0_is_all_and_nothing_on_the_cpu() -> None:
    assert (flashattn.flash_attn_func(X, X, X, n_multiprocessors=0) == 1).all()
