"""alibi_slopes, attn_mask, mask_bits and mask_keys as arguments: shapes that broadcast, foreign
arrays, and what is refused."""

from __future__ import annotations

import flashattn
import numpy as np
import pytest
from flashattn import oracle
from foreign_arrays import DLPackArray

RNG = np.random.default_rng(0)
Q = RNG.standard_normal((2, 5, 4, 8)).astype(np.float32)
K, V = RNG.standard_normal((2, 2, 7, 2, 8)).astype(np.float32)
SLOPES = np.array([0.5, 0.25, 0.0, 0.125], np.float32)
CU = np.array([0, 5, 10], np.int32)


@pytest.mark.parametrize(
    "shape",
    [
        (7,),
        (1, 7),
        (5, 7),
        (5, 1),
        (1, 5, 7),
        (4, 5, 7),
        (4, 1, 7),
        (2, 1, 1, 7),
        (1, 4, 5, 7),
        (1,),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, bool], ids=str)
def test_masks_broadcast(shape: tuple[int, ...], dtype: type) -> None:
    mask = RNG.random(shape) < 0.6 if dtype is bool else RNG.standard_normal(shape).astype(dtype)
    whole = np.broadcast_to(mask, (2, 4, 5, 7))
    expected, expected_lse = oracle.attention(Q, K, V, attn_mask=whole)
    for given in (mask, whole):
        o, lse = flashattn.flash_attn_func(Q, K, V, attn_mask=given, return_lse=True)
        np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)


def test_strides_and_foreign_arrays() -> None:
    mask = RNG.standard_normal((2, 4, 5, 7)).astype(np.float32)
    expected = flashattn.flash_attn_func(Q, K, V, attn_mask=mask, alibi_slopes=SLOPES)
    apart = np.ascontiguousarray(mask.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)
    slopes = np.ascontiguousarray(np.stack((SLOPES, SLOPES)))
    for x, s in ((apart, slopes), (DLPackArray(mask), DLPackArray(SLOPES))):
        found = flashattn.flash_attn_func(Q, K, V, attn_mask=x, alibi_slopes=s)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    expected, _ = oracle.attention(Q, K, V, attn_mask=mask, mask_head_scale=SLOPES)
    for s in (SLOPES, DLPackArray(SLOPES)):
        found = flashattn.flash_attn_func(Q, K, V, attn_mask=mask, mask_head_scale=s)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_nothing_to_mask() -> None:
    for q, k, shape in (
        (Q[:0], K[:0], (1, 1, 5, 7)),
        (Q[:, :0], K, (0, 7)),
        (Q, K[:, :0], (5, 0)),
    ):
        for mask in (np.zeros(shape, np.float32), np.ones(shape, bool)):
            o = flashattn.flash_attn_func(q, k, k, attn_mask=mask)
            assert o.shape == q.shape and (o == 0).all()


MASK = np.zeros((5, 7), np.float32)
BITS = np.zeros((5, 1), np.uint32)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"attn_mask": MASK, "mask_bits": BITS}, "attn_mask and mask_bits are given"),
        ({"mask_keys": 3}, "mask_keys is given without attn_mask or mask_bits"),
        ({"attn_mask": MASK[:, :3]}, r"attn_mask has shape \(5, 3\), and the number of keys is 7"),
        ({"attn_mask": MASK, "mask_keys": 3}, r"attn_mask has shape \(5, 7\), and mask_keys is 3"),
        (
            {"attn_mask": MASK[:3]},
            r"attn_mask has shape \(3, 7\): its axes but the last",
        ),
        ({"attn_mask": np.zeros((3, 1, 5, 7), np.float32)}, r"broadcast to \(2, 4, 5\)"),
        ({"attn_mask": np.zeros((1, 2, 4, 5, 7), np.float32)}, r"broadcast to \(2, 4, 5\)"),
        ({"attn_mask": MASK.astype(np.float64)}, "attn_mask is float64: not one of float16, "),
        ({"mask_bits": MASK}, "mask_bits is float32: not one of uint32, int32"),
        ({"mask_bits": BITS[:, :0]}, r"mask_bits has shape \(5, 0\): 7 keys are 1 words"),
        (
            {"mask_bits": BITS, "mask_keys": 33},
            r"mask_bits has shape \(5, 1\): 33 keys",
        ),
        (
            {"mask_bits": np.zeros((5, 4), np.uint32)[:, ::2]},
            "mask_bits has a stride of 2 words, not 1",
        ),
        ({"alibi_slopes": SLOPES[:3]}, r"alibi_slopes has shape \(3,\), not \(4,\) or \(2, 4\)"),
        ({"alibi_slopes": SLOPES.astype(np.float64)}, "alibi_slopes is float64, not float32"),
        (
            {"alibi_slopes": np.zeros(8, np.float32)[::2]},
            "alibi_slopes has a stride of 2 elements from head to head, not 1",
        ),
        ({"mask_head_scale": SLOPES}, "mask_head_scale is given without attn_mask or mask_bits"),
        (
            {"attn_mask": MASK, "mask_head_scale": SLOPES[:3]},
            r"mask_head_scale has shape \(3,\), not \(4,\): one per query head",
        ),
        (
            {"attn_mask": MASK, "mask_head_scale": SLOPES.astype(np.float16)},
            "mask_head_scale is float16, not float32",
        ),
        (
            {"attn_mask": MASK, "mask_head_scale": np.zeros(8, np.float32)[::2]},
            "mask_head_scale has a stride of 2 elements from head to head, not 1",
        ),
        (
            {"attn_mask": MASK > 0, "mask_head_scale": SLOPES},
            "mask_head_scale is given, and attn_mask is bool: bits are not multiplied",
        ),
        (
            {"mask_bits": BITS, "mask_head_scale": SLOPES},
            "mask_head_scale is given, and the mask is mask_bits: bits are not multiplied",
        ),
        ({"attn_mask": MASK[::-1]}, "mask.stride_query is -7: negative"),
    ],
)
def test_refusals(given: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        flashattn.flash_attn_func(Q, K, V, **given)


def test_refusals_of_ragged_queries() -> None:
    q, k = Q.reshape(10, 4, 8), K.reshape(14, 2, 8)
    ends = np.array([0, 7, 14], np.int32)
    options = {
        "cu_seqlens_q": CU, "cu_seqlens_k": ends, "max_seqlen_q": 5, "max_seqlen_k": 7,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"attn_mask has shape \(2, 4, 10, 7\)"):
        mask = np.zeros((2, 4, 10, 7), np.float32)
        flashattn.flash_attn_varlen_func(q, k, k, attn_mask=mask, **options)
    mask = np.zeros((4, 10, 3), np.float32)  # of any number of keys
    o = flashattn.flash_attn_varlen_func(q, k, k, attn_mask=mask, **options)
    plain = flashattn.flash_attn_varlen_func(q, k, k, **options)
    np.testing.assert_allclose(o, plain, rtol=1e-5, atol=1e-6)
