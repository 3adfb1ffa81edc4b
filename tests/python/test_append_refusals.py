"""What flashattn.flash_kv_append refuses by itself. tests/c/test_append.c has what the library
refuses."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from flashattn import flash_kv_append

SHAPE = (2, 3, 2, 8)  # of new tokens
CACHE = (2, 9, 2, 8)
Q = (2, 3, 4, 8)


def _zeros(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def _repeating(*shape: int) -> np.ndarray:
    array = _zeros(*shape)
    return np.lib.stride_tricks.as_strided(array, shape, (0, *array.strides[1:]))


def _int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


TABLES = {"rotary_cos": _zeros(20, 3), "rotary_sin": _zeros(20, 3)}
PAGED = {"page_table": np.zeros((2, 3), np.int32)}
RAGGED = {
    "k_new": _zeros(5, 2, 8), "v_new": _zeros(5, 2, 8), "cu_seqlens_new": _int32(0, 2, 5)
}  # fmt: skip
REFUSALS = {
    "k_new_axes": ({"k_new": _zeros(6, 2, 8)}, r"k_new has 3 axes, not 4: \(6, 2, 8\)"),
    "ragged_axes": ({"cu_seqlens_new": _int32(0, 6)}, "k_new has 4 axes, not 3"),
    "k_new_type": ({"k_new": _zeros(*SHAPE, dtype=np.float64)}, "k_new is float64"),
    "k_new_innermost": ({"k_new": _zeros(2, 3, 2, 16)[..., ::2]}, "k_new is not contiguous"),
    "v_new_shape": ({"v_new": _zeros(2, 3, 1, 8)}, r"v_new has shape \(2, 3, 1, 8\), k_new"),
    "v_new_width": ({"v_new": _zeros(2, 3, 2, 6)}, r"v_cache has heads and d_head .2, 8., v_new"),
    "v_width_0": (
        {"v_new": _zeros(2, 3, 2, 0), "v_cache": _zeros(2, 9, 2, 0)},
        r"v_new has d_head_v \(last axis\) 0: it must be at least 1",
    ),
    "v_new_alone": ({"v_cache": None}, "v_new is given without v_cache"),
    "v_cache_alone": ({"v_new": None}, "v_cache without v_new"),
    "v_cache_shape": ({"v_cache": _zeros(2, 8, 2, 8)}, r"v_cache has shape \(2, 8, 2, 8\), k_"),
    "cache_entries": (
        {"k_cache": _zeros(1, 9, 2, 8), "v_cache": _zeros(1, 9, 2, 8)},
        r"k_cache has batch \(first axis\) 1, not 2",
    ),
    "rows_of_a_wider_table": (
        {"page_table": np.zeros((2, 9), np.int32)[:, :3], "seqused_k": _int32(25, 0)},
        "would be its key 27: the cache holds 27 keys of it",
    ),
    "cache_heads": ({"k_cache": _zeros(2, 9, 3, 8)}, r"k_cache has heads and d_head \(3, 8\)"),
    "cache_read_only": (
        {"k_cache": np.broadcast_to(_zeros(1, 9, 2, 8), CACHE)}, "k_cache is read-only"
    ),
    "cache_repeats": ({"v_cache": _repeating(*CACHE)}, "v_cache overlaps itself"),
    "q_out_alone": ({"q_out": _zeros(*Q)}, "q_out is given without q"),
    "q_d_head": ({"q": _zeros(2, 3, 4, 6), **TABLES}, "q has d_head .* 6, k_new has 8"),
    "q_batch": ({"q": _zeros(3, 3, 4, 8), **TABLES}, "q has batch .* 3, not 2"),
    "q_type": ({"q": _zeros(*Q, dtype=np.uint8), **TABLES}, "q is uint8"),
    "q_out_shape": (
        {"q": _zeros(*Q), "q_out": _zeros(2, 3, 5, 8), **TABLES}, r"q_out has shape \(2, 3, 5, 8\)"
    ),
    "q_out_repeats": (
        {"q": _zeros(*Q), "q_out": _repeating(*Q), **TABLES}, "q_out overlaps itself"
    ),
    "q_without_tables": ({"q": _zeros(*Q)}, "seqlen_q is 3 without rotary"),
    "lengths_type": ({"seqused_k": np.zeros(2, np.int64)}, "seqused_k is int64, not int32"),
    "lengths_count": ({"seqused_k": _int32(0, 0, 0)}, "seqused_k has 3 values, not 2"),
    "lengths_out_count": ({"seqused_k_out": _int32(0)}, "seqused_k_out has 1 values, not 2"),
    "lengths_out_read_only": (
        {"seqused_k_out": np.broadcast_to(_int32(0), 2)}, "seqused_k_out is"
    ),
    "no_place": ({"seqused_k": None}, "seqused_k and slot_mapping are NULL"),
    "slots_type": ({"slot_mapping": _int32(*range(6))}, "slot_mapping is int32, not int64"),
    "slots_count": ({"slot_mapping": [0, 1]}, "slot_mapping has 2 values, not 6"),
    "slots_and_table": (
        {"slot_mapping": list(range(6)), **PAGED}, "page_table or paging.page_rows is given with"
    ),
    "ends_empty": ({**RAGGED, "cu_seqlens_new": _int32()}, "cu_seqlens_new is empty"),
    "q_ends_alone": (
        {
            "k_new": _zeros(6, 2, 8), "v_new": _zeros(6, 2, 8), "slot_mapping": list(range(6)),
            "seqused_k": None, "cu_seqlens_q": _int32(0, 2),
        },
        "cu_seqlens_q is given, and cu_seqlens_new is not",
    ),
    "table_rows": ({"page_table": _int32(1, 2).reshape(1, 2)}, "page_table has 1 rows for a batch"),
    "table_type": ({"page_table": np.zeros((2, 3), np.int64)}, "page_table is int64, not int32"),
    "row_beyond": ({**PAGED, "page_rows": _int32(0, 2)}, r"page_rows\[1\] is 2, page_table has 2"),
    "v_table_alone": ({"v_page_table": PAGED["page_table"]}, "v_page_table is given without"),
    "cos_alone": ({"rotary_cos": _zeros(20, 3)}, "rotary_cos is given without rotary_sin"),
    "tables_differ": (
        {"rotary_cos": _zeros(20, 3), "rotary_sin": _zeros(20, 2)}, r"rotary_sin has shape \(20, 2"
    ),
    "positions_alone": ({"rotary_positions": [0] * 6}, "rotary_positions is given without"),
    "start_alone": ({"rotary_start": _int32(0, 0)}, "rotary_start is given without rotary_cos"),
    "interleaved_alone": ({"rotary_interleaved": True}, "rotary_interleaved is given without"),
    "at_start_alone": ({"rotary_q_at_start": True}, "rotary_q_at_start is given without"),
    "positions_count": ({**TABLES, "rotary_positions": [0]}, "rotary_positions has 1 values"),
    "scale_of_fp32": ({"k_descale": 2.0}, "quant.k_scale is given, and k.dtype is 3"),
    "scale_shape": (
        {"k_cache": _zeros(*CACHE, dtype=ml_dtypes.float8_e4m3fn), "v_cache": None, "v_new": None,
         "k_descale": np.ones((2, 3), np.float32)},
        r"k_descale has shape \(2, 3\), not \(2, 2\)",
    ),
    "key_beyond": ({"seqused_k": _int32(0, 7)}, "would be its key 9: the cache holds 9 keys"),
}  # fmt: skip


def _arguments(**changes: object) -> dict[str, object]:
    valid = {
        "k_new": np.ones(SHAPE, np.float32),
        "v_new": np.ones(SHAPE, np.float32),
        "k_cache": _zeros(*CACHE),
        "v_cache": _zeros(*CACHE),
        "seqused_k": _int32(0, 6),
    }
    return {**valid, **changes}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses(name: str) -> None:
    changes, words = REFUSALS[name]
    arguments = _arguments(**changes)
    with pytest.raises(ValueError, match=words):
        flash_kv_append(**arguments)
    for cache in ("k_cache", "v_cache"):
        if arguments[cache] is not None:
            assert not np.any(np.asarray(arguments[cache], np.float32))


def test_refuses_what_is_no_array() -> None:
    with pytest.raises(TypeError, match="k_cache is of type list"):
        flash_kv_append(**_arguments(k_cache=[0.0]))


def test_types_that_do_not_go_together_are_not_implemented() -> None:
    e4m3 = ml_dtypes.float8_e4m3fn
    new = {"k_new": _zeros(*SHAPE, dtype=e4m3), "v_new": _zeros(*SHAPE, dtype=e4m3)}
    for changes in (
        new,
        {"v_new": _zeros(*SHAPE, dtype=np.float16)},
        {"v_cache": _zeros(*CACHE, dtype=e4m3)},
        {**new, "k_cache": _zeros(*CACHE, dtype=np.float16), "v_cache": None, "v_new": None},
    ):
        with pytest.raises(NotImplementedError):
            flash_kv_append(**_arguments(**changes))


# ---- torch ----


def test_torch_tensors_are_written() -> None:
    """An empty tensor of torch has no address, and is an argument all the same."""
    torch = pytest.importorskip("torch")
    x = torch.arange(48, dtype=torch.bfloat16).reshape(3, 2, 8)
    caches = [torch.zeros(2, 4, 2, 8, dtype=torch.float16) for _ in range(2)]
    slots = torch.tensor([5, -1, 0])
    flash_kv_append(x, x, *caches, slot_mapping=slots)
    for cache in caches:
        assert torch.equal(cache[1, 1], x[0].to(torch.float16))
        assert torch.equal(cache[0, 0], x[2].to(torch.float16))
        assert cache.count_nonzero() == 31
    flash_kv_append(x[:0], x[:0], *caches, slot_mapping=slots[:0])
    no_lengths, no_table = slots[:0].to(torch.int32), torch.zeros(0, 5, dtype=torch.int32)
    no_keys = torch.zeros(0, 3, 2, 8)
    flash_kv_append(no_keys, no_keys, *caches, seqused_k=no_lengths, page_table=no_table)


def test_a_new_array_for_q_is_like_q() -> None:
    torch = pytest.importorskip("torch")
    q = torch.randn(2, 3, 4, 8, dtype=torch.float16)
    tables = {name: torch.ones(20, 3) for name in TABLES}
    turned = flash_kv_append(
        torch.zeros(SHAPE), None, torch.zeros(CACHE), None, q=q, **tables,
        seqused_k=torch.zeros(2, dtype=torch.int32),
    )  # fmt: skip
    assert turned.dtype == q.dtype and turned.shape == q.shape and turned is not q
    assert torch.equal(turned[..., 6:], q[..., 6:])
