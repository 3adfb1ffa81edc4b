"""Holes of a page table (page_holes) on the device, by every row that hides them: keys of which
nothing is read and that no query sees, anywhere in a row of the table. Their pages are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from bias_cases import BiasCase
from cache_families import CHUNKS, DECODE, E4M3_PREFILL, MLA, PREFILL, CacheFamily, of_heads
from expectation import Expected
from flashattn import Arch, Feature, latent
from gpu_problems import check_outputs, device_options, device_pages, expected_of, host_inputs, run
from memory import LATENT, dtype_of
from paging import PagedProblem
from problems import AttentionProblem

_LENGTHS = (0, 1, 63, 64, 65, 330)


def _few_keys(p: AttentionProblem) -> AttentionProblem:
    return replace(p, batch=len(_LENGTHS), seqlen_k=330, seqused_k=_LENGTHS)


_MLA = _few_keys(MLA.batch)
PROBLEMS = {
    "mla": {
        "chosen": replace(_MLA, seqlen_q=1, n_heads=128),
        "causal": replace(_MLA, causal=True),
        "window": replace(_MLA, seqlen_q=5, n_heads=16, window_size=(77, 2)),
        "softcap": replace(_MLA, softcap=3.0, n_heads=12, n_heads_kv=2),
        "sinks": replace(_MLA, sinks=tuple(i / 8 - 2.0 for i in range(40))),
        "split": AttentionProblem(1, 1, 5000, 16, 1, 576, seqused_k=(4999,)),
    },
    "decode": {
        "one query": _few_keys(DECODE.batch),
        "causal": _few_keys(DECODE.problems["causal"]),
        "split": AttentionProblem(1, 1, 5000, 8, 2, 128, "bfloat16", seqused_k=(4999,)),
    },
    "chunks": {
        "full": _few_keys(CHUNKS.batch),
        "causal": _few_keys(CHUNKS.problems["causal"]),
        "softcap": _few_keys(CHUNKS.problems["softcap"]),
        "split": AttentionProblem(1, 40, 5000, 8, 2, 128, "bfloat16", seqused_k=(4999,)),
    },
    "prefill": {
        "full": _few_keys(PREFILL.batch),
        "causal": _few_keys(PREFILL.problems["causal"]),
        "window": _few_keys(PREFILL.problems["window"]),
    },
    "e4m3": {
        "full": replace(E4M3_PREFILL.batch, seqlen_k=330, seqused_k=_LENGTHS),
        "causal": replace(E4M3_PREFILL.batch, seqlen_k=330, seqused_k=_LENGTHS, causal=True),
    },
}
BIASES = {
    "slopes": BiasCase(slopes=2),
    "bits": BiasCase(kind="bits"),
    "numbers": BiasCase(slopes=1, kind="float32"),
}
FAMILIES = (MLA, DECODE, CHUNKS, PREFILL, E4M3_PREFILL)


def hides_holes(config: flashattn.Config) -> bool:
    """Says whether the row hides keys in holes, as query_support() must say, too."""
    converts = config.dtype in (flashattn.DType.E4M3, flashattn.DType.LATENT_E4M3)
    shares_rows = config.arch in (Arch.SM90_MLA, Arch.SM90_WIDE)
    has_bias = config.features & Feature.BIAS and config.arch != Arch.SM80_WIDE
    return bool(has_bias) or (converts and shares_rows)


ROWS = [(family, config) for family in FAMILIES for config in family.paged]
HIDING = [(family, config) for family, config in ROWS if hides_holes(config)]
every_hiding_row = pytest.mark.parametrize(
    ("family", "config"), HIDING, ids=lambda x: x.name if isinstance(x, CacheFamily) else str(x)
)
pytestmark = pytest.mark.skipif(not HIDING, reason="needs rows that hide holes")


def _expected(family: CacheFamily, q: PagedProblem) -> Expected:
    p = q.dense
    inputs = host_inputs(p)
    if p.dtype == LATENT:
        inputs[1] = latent.decode(inputs[1]).astype(np.float32).astype(dtype_of("bfloat16"))
    if family is MLA:
        inputs[2] = inputs[1][..., : latent.CODES]
    o_dtype = dtype_of(p.types[2])
    return expected_of(*inputs, o_dtype=o_dtype, **p.options(), hidden_keys=q.hidden_keys)


def _run(
    family: CacheFamily, q: PagedProblem, config: flashattn.Config | None
) -> tuple[np.ndarray, np.ndarray]:
    tensors, where = device_pages(q)
    tensors = family.checks.tensors_of(*tensors)
    return run(replace(q.p, seqused_k=None), tensors, config, **where)


def _check(family: CacheFamily, q: PagedProblem, config: flashattn.Config | None) -> None:
    found = _run(family, q, config)
    check_outputs(q.dense, found, _expected(family, q), config, f"replay: {q}")


def _served(
    family: CacheFamily, p: AttentionProblem, config: flashattn.Config
) -> AttentionProblem | None:
    p = of_heads(p, config) if family is PREFILL else family.of_row(p, config)
    rows = p.seqlen_q * (p.n_heads // p.n_heads_kv)
    return None if config.arch == Arch.SM80_DECODE and rows > 32 else p


def _problems(
    family: CacheFamily, config: flashattn.Config
) -> Iterator[tuple[str, AttentionProblem]]:
    for name, p in PROBLEMS[family.name].items():
        p = _served(family, p, config)
        if p is not None:
            yield name, p


# Pages of one token, of few and of many are read in ways of their own.
@every_hiding_row
@pytest.mark.parametrize(("page_size", "holes"), [(1, 0.3), (5, 0.5), (16, 0.4), (64, 0.5)])
def test_nobody_sees_keys_in_holes(
    page_size: int, holes: float, family: CacheFamily, config: flashattn.Config
) -> None:
    v_apart = family.checks.v_has_own_pages and page_size in (1, 16)
    for _, p in _problems(family, config):
        _check(family, PagedProblem(p, page_size, v_apart=v_apart, holes=holes), config)


@every_hiding_row
@pytest.mark.parametrize("holes", [0.005, 0.97])
@pytest.mark.parametrize("kind", ["rows", "indptr", "rows64"])
def test_few_and_many_holes(
    kind: str, holes: float, family: CacheFamily, config: flashattn.Config
) -> None:
    _, p = next(_problems(family, config))
    _check(family, PagedProblem(p, 1, kind, holes=holes), config)


@every_hiding_row
@pytest.mark.parametrize("page_size", [1, 64])
def test_a_row_of_holes_sees_nothing(
    page_size: int, family: CacheFamily, config: flashattn.Config
) -> None:
    _, p = next(_problems(family, config))
    o, lse = _run(family, PagedProblem(p, page_size, holes=1.0), config)
    assert not o.astype(np.float32).any() and (lse == -np.inf).all()


@pytest.mark.parametrize(
    ("family", "config"),
    [(family, config) for family, config in HIDING if config.features & Feature.BIAS],
    ids=lambda x: x.name if isinstance(x, CacheFamily) else str(x),
)
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_beside_a_bias(bias: BiasCase, family: CacheFamily, config: flashattn.Config) -> None:
    _, p = next(_problems(family, config))
    p = replace(p, bias=bias)
    _check(family, PagedProblem(p, 1, v_apart=family.checks.v_has_own_pages, holes=0.4), config)


@every_hiding_row
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_table_without_holes_has_the_bits_of_a_call_without_the_flag(
    page_size: int, family: CacheFamily, config: flashattn.Config
) -> None:
    _, p = next(_problems(family, config))
    found = _run(family, PagedProblem(p, page_size, holes=1e-9), config)
    expected = _run(family, PagedProblem(p, page_size), config)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected))


def test_other_rows_refuse_holes_by_name() -> None:
    for family, config in ROWS:
        p = _served(family, next(iter(PROBLEMS[family.name].values())), config)
        tensors, where = device_pages(PagedProblem(p, 1, holes=0.5))
        options = {**device_options(replace(p, seqused_k=None)), **where}
        tensors = family.checks.tensors_of(*tensors)
        support = flashattn.query_support(*tensors, config=config, **options)
        if hides_holes(config):
            assert support or "page" not in support.reason, support.reason
        else:
            assert "FLASH_FLAG_PAGE_HOLES" in support.reason


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_selection_finds_a_row(family: CacheFamily) -> None:
    configs = [config for of, config in HIDING if of is family]
    if not configs:
        pytest.skip("no row of the family hides holes")
    for name, p in _problems(family, configs[0]):
        print(name)
        _check(family, PagedProblem(p, 1, holes=0.3), None)
