"""flashattn.compat: FlashAttention-2's and -3's functions without a cache, against the oracle.

Types, heads, head dimensions and masks are those of their published tests (test_flash_attn_output
and test_flash_attn_varlen_output in tests/test_flash_attn.py and hopper/test_flash_attn.py);
pairs of values are tried and not all products.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pytest
from pairwise import Row, pairwise

torch = pytest.importorskip("torch")
from compat_support import (  # noqa: E402
    HEADS,
    TYPES,
    assert_matches_oracle,
    int32,
    normal,
    tensor,
)
from flashattn import oracle  # noqa: E402
from flashattn.compat import fa2, fa3  # noqa: E402

MASKS = {
    "full": (False, (-1, -1)),
    "causal": (True, (-1, -1)),
    "window": (False, (13, 7)),
    "causal_window": (True, (20, 0)),
    "causal_window_both": (True, (20, 20)),  # as transformers passes it: the right side is cut
    "negative": (False, (-5, 9)),  # any negative side is unbounded
}
LENGTHS_Q, LENGTHS_K = (33, 1, 0, 64), (40, 70, 9, 5)


def _is_possible(row: Row) -> bool:
    packed = str(row.get("function", "")).endswith("qkvpacked")
    return not packed or row.get("heads", "mha") == "mha"


FACTORS = {
    "heads": tuple(HEADS),
    "d_head": (32, 59, 64, 128, 256),
    "dtype": TYPES,
    "mask": tuple(MASKS),
    "softcap": (0.0, 15.0, -1.0),  # -1: none
    "scale": (None, 0.3),
    "layout": ("contiguous", "strided_rows"),
}
PADDED = pairwise(
    {
        "function": ("fa2", "fa2_kvpacked", "fa2_qkvpacked", "fa3", "fa3_qkvpacked"),
        "lengths": ((64, 64), (37, 90), (90, 37)),
        **FACTORS,
    },
    _is_possible,
)
RAGGED = pairwise(
    {
        "function": (
            "fa2",
            "fa2_kvpacked",
            "fa2_qkvpacked",
            "fa2_block_table",
            "fa3",
            "fa3_used",
            "fa3_padded_q",
        ),
        "longest": ("given", "none"),
        "rest": (0, 5),  # rows of q that belong to no sequence
        **FACTORS,
    },
    lambda row: (
        _is_possible(row)
        and not (row.get("rest") and row.get("function") in ("fa2_qkvpacked", "fa3_padded_q"))
    ),
)


def name(row: Row) -> str:
    return "-".join(str(value).replace(" ", "") for value in row.values())


def options_of(row: Row) -> dict[str, object]:
    causal, window = MASKS[row["mask"]]
    return {
        "softmax_scale": row["scale"],
        "causal": causal,
        "window_size": window,
        "softcap": row["softcap"],
    }


def oracle_options(row: Row) -> dict[str, object]:
    options = options_of(row)
    options["window_size"] = tuple(max(side, -1) for side in options["window_size"])
    options["softcap"] = max(row["softcap"], 0.0)
    return options


def arranged(array: np.ndarray, layout: str) -> torch.Tensor:
    """Returns a tensor whose innermost axis is contiguous or not."""
    if layout == "contiguous":
        return tensor(array)
    return tensor(np.moveaxis(array, -1, -2).copy()).transpose(-1, -2)


@pytest.mark.parametrize("row", PADDED, ids=name)
def test_padded(row: Row) -> None:
    n_heads, n_heads_kv = HEADS[row["heads"]]
    of_q, of_k = row["lengths"]
    if row["function"].endswith("qkvpacked"):
        of_k = of_q
    rng = np.random.default_rng(of_q + row["d_head"])
    q = normal(rng, (2, of_q, n_heads, row["d_head"]), row["dtype"])
    k, v = (normal(rng, (2, of_k, n_heads_kv, row["d_head"]), row["dtype"]) for _ in range(2))
    tensors = [arranged(x, row["layout"]) for x in (q, k, v)]
    options = options_of(row)
    if row["function"] == "fa3":
        found = fa3.flash_attn_func(*tensors, **options, return_attn_probs=True)
    elif row["function"] == "fa3_qkvpacked":
        qkv = torch.cat(tensors, dim=2)
        found = fa3.flash_attn_qkvpacked_func(
            qkv, **options, num_heads_q=n_heads, return_attn_probs=True
        )
    elif row["function"] == "fa2_kvpacked":
        kv = torch.stack(tensors[1:], dim=2)
        found = fa2.flash_attn_kvpacked_func(tensors[0], kv, **options, return_attn_probs=True)
    elif row["function"] == "fa2_qkvpacked":
        qkv = torch.stack(tensors, dim=2)
        found = fa2.flash_attn_qkvpacked_func(qkv, **options, return_attn_probs=True)
    else:
        found = fa2.flash_attn_func(*tensors, **options, return_attn_probs=True)
    is_fa2 = row["function"].startswith("fa2")
    assert len(found) == (3 if is_fa2 else 2)
    empty = np.inf if is_fa2 else -np.inf
    assert_matches_oracle(found[:2], [q, k, v], f"replay: {row}", empty, **oracle_options(row))


@pytest.mark.parametrize("row", RAGGED, ids=name)
def test_ragged(row: Row) -> None:
    function, rest = row["function"], row["rest"]
    n_heads, n_heads_kv = HEADS[row["heads"]]
    lengths_k = LENGTHS_Q if function.endswith("qkvpacked") else LENGTHS_K
    cu_q, cu_k = (np.array([0, *accumulate(x)], np.int32) for x in (LENGTHS_Q, lengths_k))
    rng = np.random.default_rng(row["d_head"])
    q = normal(rng, (cu_q[-1], n_heads, row["d_head"]), row["dtype"])
    k, v = (normal(rng, (cu_k[-1], n_heads_kv, row["d_head"]), row["dtype"]) for _ in range(2))
    more = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    longest = (max(LENGTHS_Q), max(lengths_k)) if row["longest"] == "given" else (None, None)
    call = {**options_of(row), "return_attn_probs": True}
    padded_q = np.concatenate([q, normal(rng, (rest, *q.shape[1:]), row["dtype"])])
    tensors = [arranged(x, row["layout"]) for x in (padded_q, k, v)]
    where = [tensor(cu_q), tensor(cu_k), *longest]
    if function == "fa2":
        found = fa2.flash_attn_varlen_func(*tensors, *where, **call)
    elif function == "fa2_kvpacked":
        kv = torch.stack(tensors[1:], dim=1)
        found = fa2.flash_attn_varlen_kvpacked_func(tensors[0], kv, *where, **call)
    elif function == "fa2_qkvpacked":
        qkv = torch.stack(tensors, dim=1)
        found = fa2.flash_attn_varlen_qkvpacked_func(qkv, where[0], longest[0], **call)
    elif function == "fa2_block_table":
        pool_k, pool_v, table = in_pages(rng, k, v, lengths_k, 8)
        found = fa2.flash_attn_varlen_func(
            tensors[0], pool_k, pool_v, *where, **call, block_table=table
        )
    elif function == "fa3_used":
        more["seqused_k"] = np.array([20, 70, 0, 1], np.int32)
        found = fa3.flash_attn_varlen_func(
            *tensors, *where, seqused_k=tensor(more["seqused_k"]), **call
        )
    elif function == "fa3_padded_q":
        q = normal(rng, (4, 6, n_heads, row["d_head"]), row["dtype"])
        more["cu_seqlens_q"] = None
        found = fa3.flash_attn_varlen_func(
            arranged(q, row["layout"]), *tensors[1:], None, where[1], None, longest[1], **call
        )
    else:
        found = fa3.flash_attn_varlen_func(*tensors, *where, **call)
    o, lse = found[:2]
    if rest:
        assert (o[-rest:] == 0).all() and torch.isinf(lse[:, -rest:]).all()
        o, lse = o[:-rest], lse[:, :-rest]
    empty = np.inf if function.startswith("fa2") else -np.inf
    options = {**oracle_options(row), **more}
    assert_matches_oracle((o, lse), [q, k, v], f"replay: {row}", empty, **options)


def in_pages(
    rng: np.random.Generator, k: np.ndarray, v: np.ndarray, lengths: tuple[int, ...], size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns pools of K and V that hold sequences in pages in a random order, and their table."""
    n_pages = [-(-length // size) for length in lengths]
    ids = rng.permutation(sum(n_pages) + 2)
    table = np.full((len(lengths), max(n_pages)), -1, np.int32)
    pools = [np.full((len(ids), size, *x.shape[1:]), np.nan).astype(x.dtype) for x in (k, v)]
    begin = 0
    for b, (length, n) in enumerate(zip(lengths, n_pages)):
        table[b, :n] = ids[:n]
        for j in range(length):
            for pool, x in zip(pools, (k, v)):
                pool[ids[j // size], j % size] = x[begin + j]
        begin, ids = begin + length, ids[n:]
    return *map(tensor, pools), tensor(table)


# ---- Arguments by position, and what is returned ----


@pytest.fixture
def qkv() -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    return [tensor(normal(rng, (2, 9, 4, 16), "float32")) for _ in range(3)]


def test_fa2_takes_arguments_by_position(qkv: list[torch.Tensor]) -> None:
    o = fa2.flash_attn_func(*qkv, 0.0, 0.5, True, (4, 0), 30.0, None, True, False)
    same = fa2.flash_attn_func(
        *qkv, softmax_scale=0.5, causal=True, window_size=(4, 0), softcap=30.0
    )
    assert isinstance(o, torch.Tensor) and torch.equal(o, same)
    with_lse = fa2.flash_attn_func(*qkv, 0.0, 0.5, True, (4, 0), 30.0, None, False, True)
    assert torch.equal(with_lse[0], o) and with_lse[1].shape == (2, 4, 9)
    assert with_lse[2].shape == (0,) and with_lse[2].dtype == o.dtype


def test_fa3_takes_arguments_by_position(qkv: list[torch.Tensor]) -> None:
    neutral = (3, True, True, 2)  # num_splits, pack_gqa, deterministic, sm_margin
    o = fa3.flash_attn_func(*qkv, 0.5, True, None, None, None, None, (4, 0), 0, 30.0, *neutral)
    same = fa2.flash_attn_func(*qkv, 0.0, 0.5, True, (4, 0), 30.0)
    assert isinstance(o, torch.Tensor) and torch.equal(o, same)
    assert len(fa3.flash_attn_func(*qkv, return_attn_probs=True)) == 2


def test_packed_heads_with_three_parts_of_fa3(qkv: list[torch.Tensor]) -> None:
    o = fa3.flash_attn_qkvpacked_func(torch.stack(qkv, dim=2), causal=True)
    assert torch.equal(o, fa3.flash_attn_func(*qkv, causal=True))


def test_longest_lengths_may_be_tensors(qkv: list[torch.Tensor]) -> None:
    flat = [x.flatten(0, 1) for x in qkv]
    cu = int32(0, 9, 18)
    o = fa2.flash_attn_varlen_func(*flat, cu, cu, torch.tensor(9), torch.tensor(9), causal=True)
    assert torch.equal(o.view(2, 9, 4, 16), fa2.flash_attn_func(*qkv, causal=True))


def test_rows_beyond_seqused_q_are_left_alone(qkv: list[torch.Tensor]) -> None:
    flat = [x.flatten(0, 1) for x in qkv]
    cu = int32(0, 9, 18)
    o, lse = fa3.flash_attn_varlen_func(
        *flat, cu, cu, 9, 9, seqused_q=int32(3, 9), causal=True, return_attn_probs=True
    )
    alone = fa3.flash_attn_func(flat[0][None, :3], qkv[1][:1], qkv[2][:1], causal=True)
    assert torch.equal(o[None, :3], alone) and lse.shape == (4, 18)


# ---- A d_head of V that is not that of K ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("d_head", [24, 16, 8])
def test_v_with_a_d_head_of_its_own(d_head: int, dtype: torch.dtype) -> None:
    """Columns of zeros in V change no bit of the others."""
    torch.manual_seed(0)
    sizes = (4, d_head), (2, d_head), (2, 16)
    q, k, v = (torch.randn(2, 9, heads, d).to(dtype) for heads, d in sizes)
    filled = torch.cat([v.float(), torch.zeros(2, 9, 2, 8)], dim=-1).to(dtype)
    cu = int32(0, 9, 18)

    def padded(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return fa3.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)

    def ragged(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = (x.flatten(0, 1) for x in (q, k, v))
        return fa3.flash_attn_varlen_func(*flat, cu, cu, 9, 9, causal=True, return_attn_probs=True)

    for attend in (padded, ragged):
        (o, lse), (whole, whole_lse) = attend(v), attend(filled)
        assert o.is_contiguous() and torch.equal(o, whole[..., :16])
        assert torch.equal(lse, whole_lse) and not whole[..., 16:].any()


# ---- e4m3 ----


def test_e4m3_queries_and_scales() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(1)
    shapes = (2, 40, 6, 64), (2, 50, 2, 64), (2, 50, 2, 64)
    q, k, v = (torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in shapes)
    q, k, v = (x.to(torch.float8_e4m3fn) for x in (q, k, v))
    scales = rng.uniform(0.5, 2, (3, 2, 2)).astype(np.float32)
    of_q, of_k, of_v = map(tensor, scales)
    o, lse = fa3.flash_attn_func(
        q, k, v, None, True, None, of_q, of_k, of_v.clone(), return_attn_probs=True
    )
    arrays = [x.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn) for x in (q, k, v)]
    inputs = [arrays[0].astype(ml_dtypes.bfloat16), *arrays[1:]]
    assert_matches_oracle(
        (o, lse), inputs, "", causal=True, k_descale=scales[0] * scales[1], v_descale=scales[2]
    )
    without = fa3.flash_attn_func(q.to(torch.bfloat16), k, v, causal=True, k_descale=of_q * of_k)
    again = fa3.flash_attn_func(q, k, v, causal=True, q_descale=of_q * of_k)
    assert torch.equal(without, again)


@pytest.mark.parametrize("repeats", ["batch", "heads", "both"])
def test_scales_of_e4m3_may_be_broadcast(repeats: str) -> None:
    """FlashAttention-3 takes [batch, n_heads_kv] of any strides; engines expand one number."""
    generator = torch.Generator().manual_seed(3)
    shapes = (3, 5, 4, 64), (3, 9, 2, 64), (3, 9, 2, 64)
    qkv = [torch.randn(s, generator=generator).to(torch.float8_e4m3fn) for s in shapes]
    shape = {"batch": (1, 2), "heads": (3, 1), "both": (1, 1)}[repeats]
    scales = [(torch.rand(shape, generator=generator) + 0.5).expand(3, 2) for _ in qkv]
    assert any(stride == 0 for stride in scales[0].stride())
    names = ("q_descale", "k_descale", "v_descale")
    repeated = dict(zip(names, scales))
    written_out = {name: x.contiguous() for name, x in repeated.items()}

    def ragged(**options: torch.Tensor) -> torch.Tensor:
        flat = [x.flatten(0, 1) for x in qkv]
        ends = int32(0, 5, 10, 15), int32(0, 9, 18, 27)
        return fa3.flash_attn_varlen_func(*flat, *ends, 5, 9, **options).view(3, 5, 4, 64)

    def of_cache(**options: torch.Tensor) -> torch.Tensor:
        pages = [x.reshape(9, 3, 2, 64) for x in qkv[1:]]
        table = torch.arange(9, dtype=torch.int32).view(3, 3)
        return fa3.flash_attn_with_kvcache(
            qkv[0], *pages, cache_seqlens=9, page_table=table, **options
        )

    o = fa3.flash_attn_func(*qkv, **written_out)
    decoded = [
        x.float() * scale[:, None, :, None].repeat_interleave(x.shape[2] // 2, 2)
        for x, scale in zip(qkv, scales)
    ]
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o.float(), fa3.flash_attn_func(*decoded), rtol=1e-2, atol=1e-2)
    for call in (partial(fa3.flash_attn_func, *qkv), ragged, of_cache):
        assert torch.equal(call(**repeated), o) and torch.equal(call(**written_out), o)


def test_packed_e4m3_has_scales() -> None:
    qkv = torch.randn(2, 7, 3, 4, 64).to(torch.float8_e4m3fn)
    scales = {f"{x}_descale": torch.rand(2, 4) + 0.5 for x in "qkv"}
    o = fa3.flash_attn_qkvpacked_func(qkv, causal=True, **scales)
    assert torch.equal(o, fa3.flash_attn_func(*qkv.unbind(2), causal=True, **scales))
    flat = qkv.flatten(2, 3)
    assert torch.equal(o, fa3.flash_attn_qkvpacked_func(flat, causal=True, num_heads_q=4, **scales))


def test_queries_of_e4m3_on_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay as they are where a kernel multiplies e4m3 as such; this machine needs no GPU for
    the decision."""
    from flashattn import Feature
    from flashattn.compat import _scales

    class OnDevice(NamedTuple):
        shape: tuple[int, ...]
        dtype: torch.dtype = torch.float8_e4m3fn
        is_cpu: bool = False

    ragged = Feature.CAUSAL | Feature.VARLEN
    rows = (64, Feature(0)), (128, Feature.CAUSAL), (32, ragged), (16, ragged | Feature.PAGED)
    monkeypatch.setattr(_scales, "_products", lambda: rows)
    narrower, narrow, q, wide, wider = (OnDevice((2, 9, 4, d)) for d in (16, 32, 64, 128, 192))
    for x, v, options, expected in (
        (q, q, {}, False),
        (q, q, {"causal": False, "window_size": (-1, -1), "softcap": 0.0}, False),
        (q, wide, {}, False),
        (q, q, {"causal": True}, False),
        (wide, q, {"causal": True}, False),
        (wider, q, {"causal": True}, True),
        (q, q, {"window_size": (3, -1)}, True),
        (q, q, {"attention_chunk": 4}, True),
        (q, q, {"softcap": 1.0}, True),
        (q, q, {"seqused_k": torch.ones(2)}, True),
        (q, q, {"page_table": torch.ones(2)}, True),
        (narrow, narrow, {"seqused_k": torch.ones(2), "causal": True}, False),
        (narrow, narrow, {"cu_seqlens_q": torch.ones(2)}, False),
        (narrow, narrow, {"page_table": torch.ones(2)}, True),
        (narrower, narrower, {"page_table": torch.ones(2)}, False),
        (q._replace(is_cpu=True), q, {"softcap": 1.0}, False),
        (q._replace(dtype=torch.bfloat16), q, {"softcap": 1.0}, False),
    ):
        assert _scales.needs_16_bits(x, v, options) is expected, (x, v, options)


def test_scales_beside_other_types_count_for_nothing(qkv: list[torch.Tensor]) -> None:
    scale = torch.full((2, 4), 3.0)
    o = fa3.flash_attn_func(*qkv, q_descale=scale, k_descale=scale, v_descale=scale)
    assert torch.equal(o, fa3.flash_attn_func(*qkv))


# ---- flash_attn_combine, get_scheduler_metadata ----


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16])
def test_combine(qkv: list[torch.Tensor], out_dtype: torch.dtype | None) -> None:
    q, k, v = qkv
    parts = [
        fa3.flash_attn_func(q, k[:, keys], v[:, keys], return_attn_probs=True)
        for keys in (slice(0, 4), slice(4, 5), slice(5, 9))
    ]
    out_partial = torch.stack([o for o, _ in parts])
    lse_partial = torch.stack([lse.transpose(1, 2) for _, lse in parts])  # not contiguous
    o, lse = fa3.flash_attn_combine(out_partial, lse_partial, out_dtype=out_dtype)
    whole, whole_lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True)
    assert o.dtype == (out_dtype or torch.float32) and lse.shape == (2, 9, 4)
    torch.testing.assert_close(lse, whole_lse.transpose(1, 2), atol=1e-5, rtol=1e-5)
    tolerance = 1e-5 if out_dtype is None else 1e-2
    torch.testing.assert_close(o.float(), whole, atol=tolerance, rtol=tolerance)
    out = torch.empty_like(o)
    assert fa3.flash_attn_combine(out_partial, lse_partial, out)[0] is out and torch.equal(out, o)


def test_scheduler_metadata_is_neutral(qkv: list[torch.Tensor]) -> None:
    q, k, v = qkv
    lengths = int32(9, 3)
    metadata = fa3.get_scheduler_metadata(2, 9, 9, 4, 4, 16, lengths, causal=True)
    assert metadata.dtype == torch.int32 and metadata.device == lengths.device
    o = fa3.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, scheduler_metadata=metadata, num_splits=5, pack_gqa=True
    )
    assert torch.equal(o, fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths))
    with pytest.raises(TypeError, match="cache_seqlens is a NoneType"):
        fa3.get_scheduler_metadata(2, 9, 9, 4, 4, 16, None)


# ---- ALiBi ----


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axes", [1, 2])
def test_slopes_of_fa2(axes: int, causal: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = ((2, 7, 4, 16), (2, 30, 2, 16), (2, 30, 2, 16))
    q, k, v = (tensor(normal(rng, shape, "float32")) for shape in shapes)
    slopes = torch.tensor([[0.5, 0.25, 0.125, 0.0], [1.0, 0.1, 0.2, 0.3]])
    slopes = slopes[0] if axes == 1 else slopes.t().contiguous().t()  # heads are no neighbours
    options = {"causal": causal, "alibi_slopes": slopes}
    expected, _ = oracle.attention(
        *(x.numpy() for x in (q, k, v)), causal=causal, alibi_slopes=slopes.numpy()
    )
    kv = torch.stack((k, v), 2)
    cu_q, cu_k = int32(0, 7, 14), int32(0, 30, 60)
    lengths = cu_q, cu_k, 7, 30
    found = [
        fa2.flash_attn_func(q, k, v, **options),
        fa2.flash_attn_kvpacked_func(q, kv, **options),
        fa2.flash_attn_with_kvcache(q, k, v, **options),
        fa2.flash_attn_varlen_func(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *lengths, **options
        ),
        fa2.flash_attn_varlen_kvpacked_func(q.flatten(0, 1), kv.flatten(0, 1), *lengths, **options),
    ]
    for o in found:
        np.testing.assert_allclose(o.view(q.shape).numpy(), expected, rtol=1e-4, atol=1e-5)


# ---- What is refused ----

VALUES = torch.ones(4)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            fa2.flash_attn_func,
            {"dropout_p": 0.1, "return_attn_probs": True},
            "dropout_p is 0.1, and return_attn_probs True",
        ),
        (fa3.flash_attn_func, {"qv": VALUES}, "qv is given"),
        (fa3.flash_attn_with_kvcache, {"qv": VALUES}, "qv is given"),
    ],
)
def test_what_is_not_there_is_named(
    qkv: list[torch.Tensor], function: object, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(NotImplementedError, match=message):
        function(*qkv, **arguments)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(
    "function", [fa2.flash_attn_with_kvcache, fa3.flash_attn_with_kvcache], ids=["fa2", "fa3"]
)
def test_gradients_of_caches_are_refused_where_autograd_wants_them(
    qkv: list[torch.Tensor], function: object, at: int
) -> None:
    qkv[at].requires_grad_()
    with pytest.raises(NotImplementedError, match="^[qkv](_cache)? requires a gradient"):
        function(*qkv)
    with torch.no_grad():
        assert not function(*qkv).requires_grad


def test_wrong_shapes_and_types_are_named(qkv: list[torch.Tensor]) -> None:
    q, k, v = qkv
    with pytest.raises(NotImplementedError, match="v has a d_head of 8, and k of 16"):
        fa2.flash_attn_func(q, k, v[..., :8])
    with pytest.raises(ValueError, match=r"qkv has shape \(2, 9, 4, 16\)"):
        fa2.flash_attn_qkvpacked_func(q)
    with pytest.raises(ValueError, match="num_heads_q is 3"):
        fa3.flash_attn_qkvpacked_func(q, num_heads_q=3)
    e4m3 = torch.float8_e4m3fn
    with pytest.raises(ValueError, match="k and v must be torch.float8_e4m3fn too"):
        fa3.flash_attn_func(q.to(e4m3), k, v)
    with pytest.raises(ValueError, match="q_descale is given, and q is torch.float32"):
        fa3.flash_attn_func(q, k.to(e4m3), v.to(e4m3), q_descale=torch.ones(2, 4))
