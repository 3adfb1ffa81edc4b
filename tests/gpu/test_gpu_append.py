"""New tokens go into a cache in CUDA memory: the bits are those of the CPU, and nothing else is
written.

Without a CUDA device, `pytest --noconftest` runs these functions on the CPU, which tests them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from append_cases import AppendCase, Arrays, Queries, Result, Rotary, arrays_of, named_cases
from append_cases import expected_of as oracle_of
from append_cases import poisoned as _nan
from device_memory import download, torch_dtype
from flashattn import flash_attn_func, flash_kv_append, latent
from latent_cases import new_tokens

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="without a CUDA device")

CASES = named_cases()
_GUARD, _CANARY, _NAN = 64, 0x5A, -1
_PADDING = {"padded": 16, "padded_by_three": 3}


# ---- Arrays on the device ----


class Placed:
    """A tensor of a layout, with `around` in every byte before, after and between its rows.

    unaligned: it begins one element after an aligned address, where only single elements can be
    moved.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, layout: str, around: int) -> None:
        axes = list(range(len(shape)))
        if layout == "heads_first":
            axes[-3], axes[-2] = axes[-2], axes[-3]
        strides, step = [0] * len(shape), 1
        for axis in reversed(axes):
            strides[axis] = step
            step = step * shape[axis] + _PADDING.get(layout, 0) * (axis == axes[-1])
        integers = getattr(torch, f"int{8 * torch_dtype(dtype).itemsize}")
        flat = torch.empty(step + 2 * _GUARD + 8, dtype=integers, device=DEVICE)
        flat.view(torch.int8).fill_(around)
        offset = _GUARD + (1 if layout == "unaligned" else 0)
        self._flat, self._bits = flat, flat.as_strided(shape, strides, offset)
        self.tensor = flat.view(torch_dtype(dtype)).as_strided(shape, strides, offset)
        self._around = flat.clone()

    def set(self, values: np.ndarray) -> Placed:
        bits = np.ascontiguousarray(values).view(f"i{values.itemsize}")
        self._bits.copy_(torch.from_numpy(bits))
        return self

    def take(self) -> np.ndarray:
        """Returns the values, after asserting that nothing around them was written."""
        written = self._around.clone()
        written.as_strided(
            self._bits.shape, self._bits.stride(), self._bits.storage_offset()
        ).copy_(self._bits)
        assert torch.equal(self._flat, written), "something around the tensor was written"
        return download(self.tensor.clone())


def _options(arrays: Arrays) -> dict[str, Any]:
    """Copies the arrays; tables of cosines and sines and scales keep their strides."""
    return {
        name: _upload(x) if isinstance(x, np.ndarray) else x for name, x in arrays.options.items()
    }


def _upload(x: np.ndarray) -> torch.Tensor:
    if x.dtype.kind == "i":
        return torch.from_numpy(x.copy()).to(DEVICE)
    strides = tuple(stride // x.itemsize for stride in x.strides)
    n = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, strides))
    if 0 in x.shape:
        return torch.empty(x.shape, dtype=torch_dtype(x.dtype.name), device=DEVICE)
    integers = getattr(torch, f"int{8 * x.itemsize}")
    flat = torch.full((n,), -1, dtype=integers, device=DEVICE)
    bits = np.ascontiguousarray(x).view(f"i{x.itemsize}")
    flat.as_strided(x.shape, strides).copy_(torch.from_numpy(bits))
    return flat.view(torch_dtype(x.dtype.name)).as_strided(x.shape, strides)


class Call:
    """A call of a case on the device, whose outputs hold NaN between canaries."""

    def __init__(self, case: AppendCase, arrays: Arrays | None = None) -> None:
        self.case, self.arrays = case, arrays or arrays_of(case)
        of_new, of_cache, of_q = case.layouts
        arrays = self.arrays
        self._shapes = (arrays.k_shape, arrays.v_shape)
        self._inputs = [
            None if x is None else Placed(x.shape, case.dtype, of_new, _NAN).set(x)
            for x in (arrays.k_new, arrays.v_new)
        ]
        self._caches = [
            Placed(shape, case.cache_dtype, of_cache, _CANARY) if exists else None
            for shape, exists in zip(self._shapes, (True, case.has_v))
        ]
        self.options = _options(arrays)
        self._after = self._q = self._q_in = None
        if case.counts_lengths:
            self._after = torch.full((case.batch + 2,), -5, dtype=torch.int32, device=DEVICE)
            self.options["seqused_k_out"] = self._after[1:-1]
        if arrays.q is not None:
            self._set_queries(of_q)
        self.poison()

    def _set_queries(self, layout: str) -> None:
        q, queries = self.arrays.q, self.case.queries
        in_place = queries.out == "in place"
        self._q = Placed(q.shape, queries.dtype if in_place else queries.out, layout, _CANARY)
        if not in_place:
            self._q_in = Placed(q.shape, queries.dtype, layout, _NAN).set(q)
        self.options["q_out"] = self._q.tensor
        self.options["q"] = (self._q_in or self._q).tensor

    def poison(self) -> None:
        for cache, shape in zip(self._caches, self._shapes):
            if cache is not None:
                cache.set(_nan(shape, self.case.cache_dtype))
        if self._q is not None:
            in_place = self._q_in is None
            out = self.case.queries.out
            self._q.set(self.arrays.q if in_place else _nan(self.arrays.q.shape, out))

    def run(self) -> None:
        tensors = [None if x is None else x.tensor for x in (*self._inputs, *self._caches)]
        flash_kv_append(*tensors, **self.options)

    def take(self) -> Result:
        k, v = (None if x is None else x.take() for x in self._caches)
        q = None if self._q is None else self._q.take()
        after = None
        if self._after is not None:
            after = download(self._after)
            assert after[0] == after[-1] == -5
            after = after[1:-1]
        return Result(k, v, q, after)


def _on_cpu(case: AppendCase, arrays: Arrays) -> Result:
    """Returns what the library writes on the CPU, into a cache of NaN."""
    k = _nan(arrays.k_shape, case.cache_dtype)
    v = _nan(arrays.v_shape, case.cache_dtype) if case.has_v else None
    options, q, after = dict(arrays.options), None, None
    if case.counts_lengths:
        after = options["seqused_k_out"] = np.zeros(case.batch, np.int32)
    if arrays.q is not None:
        out = case.queries.out
        q = arrays.q.copy() if out == "in place" else _nan(arrays.q.shape, out)
        options.update(q=arrays.q, q_out=q)
        if out == "in place":
            options["q"] = q
    flash_kv_append(arrays.k_new, arrays.v_new, k, v, **options)
    return Result(k, v, q, after)


def _check(case: AppendCase) -> None:
    arrays = arrays_of(case)
    call = Call(case, arrays)
    call.run()
    call.take().assert_same_bits(_on_cpu(case, arrays))


# ---- Cases ----


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_cpu(name: str) -> None:
    _check(CASES[name])


@pytest.mark.parametrize("seed", range(60))
def test_random_calls(seed: int) -> None:
    """The values are of all sizes, so that e4m3 saturates and underflows."""
    rng = np.random.default_rng(seed)
    batch, ragged = int(rng.integers(1, 6)), bool(rng.integers(2))
    one = int(rng.integers(1, 12))
    lengths = tuple(int(rng.integers(0, 12)) if ragged else one for _ in range(batch))
    d_head = int(rng.choice([8, 24, 33, 64, 80, 96, 128, 192, 256]))
    dtypes, e4m3 = ("float32", "float16", "bfloat16"), "float8_e4m3fn"
    kinds = ("contiguous", "slots", "table", "rows", "indptr", "mapping")
    case = AppendCase(
        lengths=lengths,
        used=tuple(int(x) for x in rng.integers(0, 28, batch)),
        n_heads_kv=int(rng.integers(1, 9)),
        d_head=d_head,
        dtype=str(rng.choice(dtypes)),
        cache_dtype=str(rng.choice([*dtypes, e4m3])),
        kind=str(rng.choice(kinds)),
        page_size=int(rng.choice([1, 3, 16, 64])),
        ragged=ragged,
        has_v=bool(rng.integers(4)),
        v_apart=bool(rng.integers(2)),
        rotary=Rotary(
            dim=2 * int(rng.integers(1, d_head // 2 + 1)),
            dtype=str(rng.choice(dtypes)),
            interleaved=bool(rng.integers(2)),
            source=str(rng.choice(["lengths", "start", "positions"])),
            joined=bool(rng.integers(2)),
        ),
        queries=Queries(
            lengths, int(rng.integers(1, 9)), str(rng.choice([*dtypes, e4m3])),
            str(rng.choice(["in place", *dtypes, e4m3])), ragged,
        ),
        size=float(rng.choice([1.0, 1e-3, 100.0, 1e4])),
        padding=0.2,
        layouts=tuple(rng.choice(["contiguous", "padded", "padded_by_three", "unaligned"], 3)),
        seed=seed,
    )  # fmt: skip
    if case.cache_dtype == e4m3:
        ways = ["number", "array", "strided", *["pages"] * (case.kind != "contiguous")]
        case = replace(case, scales=str(rng.choice(ways)))
        case = replace(case, dtype=str(rng.choice([case.dtype, e4m3])))
    _check(case)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_values_of_16_bits_become_e4m3(dtype: str) -> None:
    """NaN is the one whose bits differ from device to device in other types: here it has one."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    of_16_bits = torch.float16 if dtype == "float16" else torch.bfloat16
    x = bits.view(of_16_bits).to(getattr(torch, dtype)).reshape(1, 512, 2, 64)
    caches = [
        torch.zeros(x.shape, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        for device in ("cpu", DEVICE)
    ]
    for cache in caches:
        new = x.to(cache.device)
        used = torch.zeros(1, dtype=torch.int32, device=cache.device)
        flash_kv_append(new, None, cache, None, seqused_k=used, k_descale=0.7)
    codes = [cache.cpu().view(torch.uint8) for cache in caches]
    assert torch.equal(*codes)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("columns", [128, 126])
def test_all_codes_turn_to_the_codes_of_the_cpu(columns: int, interleaved: bool) -> None:
    """Rows of 128 columns are moved in vectors, others one by one."""
    codes = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.uint8)
    codes = codes.reshape(1, 1024, 1, 128)[..., :columns].contiguous()
    angles = torch.linspace(-4, 4, 1024 * 64).reshape(1024, 64)[:, : columns // 2].contiguous()
    caches = []
    for device in ("cpu", DEVICE):
        x = codes.to(device).view(torch.float8_e4m3fn)
        cache = torch.zeros_like(x)
        used = torch.zeros(1, dtype=torch.int32, device=device)
        tables = {"rotary_cos": angles.cos().to(device), "rotary_sin": angles.sin().to(device)}
        q = flash_kv_append(
            x, None, cache, None, seqused_k=used, q=x, rotary_interleaved=interleaved, **tables
        )
        assert torch.equal(q.view(torch.uint8), cache.view(torch.uint8))
        caches.append(cache.cpu().view(torch.uint8))
    assert torch.equal(*caches)


@pytest.mark.parametrize("kind", ["steps", "chunk"])
def test_large_calls(kind: str) -> None:
    """1024 sequences of a token, and one of 32768."""
    lengths = (1,) * 1024 if kind == "steps" else (32768,)
    case = AppendCase(
        lengths, tuple(i % 50 for i in range(len(lengths))), 4, 64, "bfloat16", "float8_e4m3fn",
        "table", 64, rotary=Rotary(64, "bfloat16", source="positions"),
        queries=Queries(lengths, 8, "bfloat16"), scales="array",
    )  # fmt: skip
    _check(case)


# ---- What has no place ----


def test_tokens_without_a_place_are_dropped() -> None:
    """The CPU refuses them before it writes; a CUDA device writes the others and nothing else."""
    spoiled: dict[str, tuple[str, dict[str, Any]]] = {
        "contiguous": ("contiguous", {"seqused_k": [36, 39, 2**31 - 5, -3]}),
        "slots": ("slots", {"page_rows": [-1, 9, 3, 2**31 - 1]}),
        "pages": ("table", {}),
        "beyond": ("table", {"seqused_k": [0, 10**6, -7, 2**31 - 1]}),
        "rows": ("rows", {"page_rows": [-1, 2, -(2**31), 1]}),
        "mapping": ("mapping", {}),
    }
    for kind, options in spoiled.values():
        case = AppendCase(
            (5, 5, 5, 5), (3, 0, 9, 17), 2, 64, "bfloat16", "bfloat16", kind,
            rotary=Rotary(32, "bfloat16", source="start"),
        )  # fmt: skip
        arrays = arrays_of(case)
        for name, values in options.items():
            arrays.options[name] = np.array(values, np.int32)
        if kind == "table" and not options:
            table = arrays.options["page_table"]
            table[0, 1], table[1, 0], table[2, 3] = -1, len(table) * 1000, -(2**31)
        if kind == "mapping":
            slots = arrays.options["slot_mapping"]
            slots[3], slots[7], slots[11] = -(2**63), 2**63 - 1, 10**9
        call = Call(case, arrays)
        if DEVICE == "cpu":
            with pytest.raises(ValueError):
                call.run()
            continue
        call.run()
        expected = oracle_of(case, arrays)
        result = call.take()
        result.lengths = expected.lengths = None  # a length beyond 31 bits means nothing
        result.assert_same_bits(expected)


def test_positions_beyond_the_tables_are_those_at_their_ends() -> None:
    case = AppendCase(
        (4, 4), (0, 3), 2, 64, kind="table", rotary=Rotary(64, source="positions"),
        queries=Queries((4, 4), 2),
    )  # fmt: skip
    arrays = arrays_of(case)
    arrays.options["rotary_positions"][...] = [-1, 96, 97, 2**62, -(2**63), 2**63 - 1, 0, 50]
    call = Call(case, arrays)
    if DEVICE == "cpu":
        with pytest.raises(ValueError, match="position -1"):
            call.run()
        return
    call.run()
    call.take().assert_same_bits(oracle_of(case, arrays))


# ---- Graphs and streams ----


@needs_cuda
@pytest.mark.parametrize("kind", ["table", "mapping"])
def test_a_graph_is_replayed_with_other_arrays(kind: str) -> None:
    """Lengths, tables, slots, positions and scales are read when it runs."""
    case = AppendCase(
        (3, 0, 7, 1), (5, 9, 0, 16), 2, 64, "bfloat16", "float8_e4m3fn", kind, ragged=True,
        rotary=Rotary(64, "bfloat16", source="positions"), scales="array",
        queries=Queries((3, 0, 7, 1), 4, "bfloat16", ragged=True),
    )  # fmt: skip
    call = Call(case)
    call.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
    for seed, used, lengths in ((1, (5, 9, 0, 16), (3, 0, 7, 1)), (2, (6, 8, 1, 15), (2, 1, 6, 2))):
        other = replace(case, seed=seed, used=used, lengths=lengths)
        other = replace(other, queries=replace(case.queries, lengths=lengths))
        arrays = arrays_of(other)
        assert arrays.k_shape == call.arrays.k_shape
        for name, x in arrays.options.items():
            if isinstance(x, np.ndarray):
                assert call.options[name].shape == x.shape, name
                call.options[name].copy_(_upload(x))
        arrays.k_new, arrays.v_new, arrays.q = (
            call.arrays.k_new, call.arrays.v_new, call.arrays.q
        )  # fmt: skip
        call.poison()
        graph.replay()
        torch.cuda.synchronize()
        call.take().assert_same_bits(_on_cpu(other, arrays))


@needs_cuda
def test_the_call_waits_for_its_stream() -> None:
    case = CASES["ragged_table"]
    call = Call(case)
    late = torch.from_numpy(arrays_of(case).k_new).cuda()
    stream = torch.cuda.Stream()
    new = call._inputs[0].tensor
    new.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        new.copy_(late)
        call.run()
    stream.synchronize()
    call.take().assert_same_bits(_on_cpu(case, call.arrays))


# ---- Appending and attention ----


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_steps_and_attention_are_attention_over_the_whole(dtype: str) -> None:
    """Attention over pages that were filled in steps has the bits of attention over pages that were
    filled at once."""
    rng = np.random.default_rng(0)
    batch, heads_kv, d, size, total = 3, 2, 128, 16, 70
    kind = getattr(torch, dtype)
    k, v, q = (
        torch.from_numpy(rng.standard_normal((batch, total, h, d)).astype(np.float32)).to(
            DEVICE, kind
        )
        for h in (heads_kv, heads_kv, 8)
    )
    angles = torch.from_numpy(rng.uniform(-4, 4, (total, d // 2)).astype(np.float32)).to(DEVICE)
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    n_ids = -(-total // size)
    table = torch.from_numpy(rng.permutation(batch * n_ids).reshape(batch, -1).astype(np.int32))
    table = table.to(DEVICE)
    shape = (batch * n_ids, size, heads_kv, d)
    whole, steps = ([torch.zeros(shape, dtype=kind, device=DEVICE) for _ in "kv"] for _ in "ws")
    none = torch.zeros(batch, dtype=torch.int32, device=DEVICE)
    all_q = flash_kv_append(k, v, *whole, q=q, seqused_k=none, page_table=table, **tables)
    used, begin = none.clone(), 0
    for n in (40, 1, 1, 13, 15):
        after = torch.empty_like(used)
        part = slice(begin, begin + n)
        turned = flash_kv_append(
            k[:, part], v[:, part], *steps, q=q[:, part], seqused_k=used, seqused_k_out=after,
            page_table=table, **tables,
        )  # fmt: skip
        assert torch.equal(turned, all_q[:, part])
        used, begin = after, begin + n
    assert used.tolist() == [total] * batch
    assert all(torch.equal(a, b) for a, b in zip(whole, steps))
    o, reference = (
        flash_attn_func(turned, *pools, causal=True, seqused_k=used, page_table=table)
        for pools in (steps, whole)
    )
    assert torch.equal(o, reference)


# ---- Latent tokens ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("step", [2 * 576, 2 * 576 + 1])
def test_latent_tokens_have_the_bits_of_the_cpu(dtype: str, step: int) -> None:
    """step: elements from token to token of k_new, which may lie anywhere."""
    n, n_places = 300, 40 * 16
    x = new_tokens(dtype, n)
    slots = np.random.default_rng(5).permutation(n_places)[:n].astype(np.int64)
    slots[7] = -1  # padding
    expected = np.full((n_places, 2, 656), _CANARY, np.uint8)
    kept = slots >= 0
    expected[slots[kept]] = latent.encode(x[kept])
    bits = torch.from_numpy(np.ascontiguousarray(x).view(f"i{x.itemsize}"))
    flat = torch.zeros(n * step, dtype=bits.dtype, device=DEVICE)
    k_new = flat.as_strided(x.shape, (step, 576, 1)).copy_(bits).view(torch_dtype(dtype))
    cache = torch.full((40, 16, 2, 656), _CANARY, dtype=torch.uint8, device=DEVICE)
    places = torch.from_numpy(slots).to(DEVICE)
    flash_kv_append(k_new, None, cache, None, kv_dtype="latent_e4m3", slot_mapping=places)
    assert (cache.cpu().numpy().reshape(expected.shape) == expected).all()
