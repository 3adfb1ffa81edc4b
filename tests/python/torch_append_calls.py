"""Calls of flash_kv_append with torch tensors, on any device. Import it after
pytest.importorskip("torch")."""

from __future__ import annotations

from typing import Any, Callable

import torch
from flashattn import torch_ops
from torch_calls import entered

Call = dict[str, Any]  # keywords of flash_kv_append
WRITTEN = ("k_cache", "v_cache", "seqused_k_out", "q_out")
E4M3 = torch.float8_e4m3fn
BATCH, HEADS, HEADS_KV, D_HEAD = 3, 6, 2, 32


class _Maker:
    """Makes tensors on a device, the same each time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._generator = torch.Generator().manual_seed(7)

    def random(self, *shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self.device, dtype)

    def int32(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def int64(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, device=self.device)

    def table(self) -> torch.Tensor:
        return self.int32(7, 2, 0, 5, 1, 8, 6, 4, 3).view(3, 3)

    def cache(self, *shape: int, dtype: torch.dtype = torch.float16) -> Call:
        k, v = (self.random(*shape, HEADS_KV, D_HEAD).to(dtype) for _ in range(2))
        return {"k_cache": k, "v_cache": v}

    def new(self, *shape: int, dtype: torch.dtype = torch.float16) -> Call:
        k, v = (self.random(*shape, HEADS_KV, D_HEAD).to(dtype) for _ in range(2))
        return {"k_new": k, "v_new": v}

    def rotary(self, n_pairs: int = D_HEAD // 2) -> Call:
        angles = 9 * torch.rand(40, n_pairs, generator=self._generator).to(self.device)
        return {"rotary_cos": angles.cos().half(), "rotary_sin": angles.sin().half()}


def _dense(m: _Maker) -> Call:
    return {**m.new(BATCH, 4), **m.cache(BATCH, 20), "seqused_k": m.int32(0, 16, 5)}


def _dense_rotary(m: _Maker) -> Call:
    more = {"q": m.random(BATCH, 4, HEADS, D_HEAD), "seqused_k_out": m.int32(0, 0, 0)}
    return {**_dense(m), **m.rotary(), **more}


def _pages(m: _Maker) -> Call:
    lengths = {"seqused_k": m.int32(0, 11, 5), "seqused_k_out": m.int32(0, 0, 0)}
    return {**m.new(BATCH, 1), **m.cache(9, 4), **lengths, "page_table": m.table()}


def _pages_of_rows(m: _Maker) -> Call:
    tables = {
        "page_table": m.table(),
        "v_page_table": m.table().flip(1),
        "page_rows": m.int32(2, 0, 1),
    }
    rotary = {"rotary_start": m.int32(30, 2, 17), "rotary_q_at_start": True}
    q = m.random(BATCH, 5, HEADS, D_HEAD)
    return {**_pages(m), **tables, **m.rotary(5), **rotary, "q": q, "rotary_interleaved": True}


def _pages_of_wide_rows(m: _Maker) -> Call:
    return {**_pages_of_rows(m), "page_rows": m.int64(2, 0, 1)}


def _pages_of_any_number(m: _Maker) -> Call:
    return {**_pages(m), "page_table": m.table().flatten(), "page_indptr": m.int32(0, 2, 6, 9)}


def _slots_of_sequences(m: _Maker) -> Call:
    return {**_dense(m), **m.cache(5, 20), "page_rows": m.int32(4, 0, 2)}


def _ragged(m: _Maker) -> Call:
    ends = {"cu_seqlens_new": m.int32(0, 3, 3, 7), "cu_seqlens_q": m.int32(0, 1, 1, 6)}
    q = m.random(8, HEADS, D_HEAD)
    lengths = {"seqused_k": m.int32(8, 12, 0), "page_table": m.table()}
    return {
        **m.new(9),
        **m.cache(9, 4),
        **lengths,
        **ends,
        **m.rotary(),
        "q": q,
        "q_out": q.float(),
    }


def _in_place(m: _Maker) -> Call:
    q = m.random(BATCH, 2, 4, HEADS, D_HEAD)[:, 0]
    return {**_dense(m), **m.rotary(), "q": q, "q_out": q}


def _slot_mapping(m: _Maker) -> Call:
    slots = {"slot_mapping": m.int64(8, -1, 35, 0, 17), "rotary_positions": m.int64(0, 3, 39, 1, 1)}
    return {**m.new(5), **m.cache(9, 4), **slots, **m.rotary(), "q": m.random(5, HEADS, D_HEAD)}


def _padded_slot_mapping(m: _Maker) -> Call:
    return {**m.new(2, 3), **m.cache(9, 4), "slot_mapping": m.int64(8, -1, 35, 0, 17, 30)}


def _without_v(m: _Maker) -> Call:
    return {**_dense(m), "v_new": None, "v_cache": None}


def _wide_v(m: _Maker) -> Call:
    v_new, v_cache = m.random(BATCH, 1, HEADS_KV, 48), m.random(9, 4, HEADS_KV, 48)
    return {**_pages_of_rows(m), "v_new": v_new, "v_cache": v_cache}


def _to_e4m3(m: _Maker) -> Call:
    k_scale = m.random(BATCH, HEADS_KV, dtype=torch.float32).abs() + 0.1
    scales = {"k_descale": k_scale, "v_descale": 0.5}
    return {**_pages(m), **m.cache(9, 4, dtype=E4M3), **scales}


def _to_pages_of_e4m3(m: _Maker) -> Call:
    k_scale = m.random(9, HEADS_KV, dtype=torch.float32).abs() + 0.1
    scales = {"k_descale": k_scale, "v_descale": 0.5, "page_scales": True}
    return {**_pages(m), **m.cache(9, 4, dtype=E4M3), **scales}


def _of_turned_e4m3(m: _Maker) -> Call:
    return {**_of_e4m3(m), **m.rotary(), "q": m.random(BATCH, 4, HEADS, D_HEAD)}


def _of_e4m3(m: _Maker) -> Call:
    return {**_dense(m), **m.new(BATCH, 4, dtype=E4M3), **m.cache(BATCH, 20, dtype=E4M3)}


def _beside_each_other(m: _Maker) -> Call:
    k, v = m.random(9, 4, 2, HEADS_KV, D_HEAD).unbind(2)
    new = m.random(BATCH, 1, 2 * HEADS_KV, D_HEAD)
    return {**_pages(m), "k_cache": k, "v_cache": v, "k_new": new[:, :, :2], "v_new": new[:, :, 2:]}


def _repeated(m: _Maker) -> Call:
    new = m.random(BATCH, 4, 1, D_HEAD).expand(BATCH, 4, HEADS_KV, D_HEAD)
    return {**_dense(m), "k_new": new, "v_new": new}


def _nothing_new(m: _Maker) -> Call:
    return {**_dense_rotary(m), **m.new(BATCH, 0)}


_MAKERS: dict[str, Callable[[_Maker], Call]] = {
    make.__name__.strip("_").replace("_", " "): make
    for make in (
        _dense, _dense_rotary, _pages, _pages_of_rows, _pages_of_wide_rows, _pages_of_any_number,
        _slots_of_sequences, _ragged, _in_place, _slot_mapping, _padded_slot_mapping, _without_v,
        _wide_v, _to_e4m3, _to_pages_of_e4m3, _of_e4m3, _of_turned_e4m3, _beside_each_other,
        _repeated, _nothing_new,
    )
}  # fmt: skip
NAMES = tuple(_MAKERS)


def make_call(name: str, device: str = "cpu") -> Call:
    return _MAKERS[name](_Maker(device))


def run(call: Call, way: str) -> torch.Tensor | None:
    """Returns the turned queries of a call in one of WAYS."""
    with entered(way) as recorded:
        found = torch_ops.flash_kv_append(**call)
    assert way != "operator" or recorded.operators == ["kv_append.default"]
    return found


def assert_same(call: Call, other: Call) -> None:
    """Asserts that two calls have written the same bits."""
    for name in WRITTEN:
        assert_same_bits(call.get(name), other.get(name))


def assert_same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> None:
    assert (a is None) == (b is None)
    if a is not None:
        assert a.dtype == b.dtype and torch.equal(
            *(x.contiguous().view(torch.uint8) for x in (a, b))
        )
