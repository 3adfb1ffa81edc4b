"""What holds of every cache of keys (cache_checks.py), in each family that reads one. The name of a
case has the check, the family, the problem, and the row, if it is not the one that is selected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import flashattn
import pytest
from cache_families import (
    BIASED_PROBLEMS,
    BIASES,
    CHUNKS,
    D_HEAD,
    DECODE,
    E4M3_PREFILL,
    FEW_BIASED_PROBLEMS,
    FEW_PROBLEMS,
    MIXED,
    MLA,
    PAGE_SIZES_OF_EVERY_WAY,
    PREFILL,
    PREFILL_PAGE_SIZES,
    CacheFamily,
    biased,
    of_first_rows,
)
from flashattn import Feature
from gpu_problems import runnable_rows
from paging import KINDS
from problems import AttentionProblem

Config = flashattn.Config
SELECTED: tuple[None] = (None,)


@dataclass(frozen=True)
class Case:
    name: str
    family: CacheFamily
    p: AttentionProblem
    config: Config | None
    arguments: dict[str, object]

    def run(self, check: str) -> None:
        p = self.family.of_row(self.p, self.config) if self.config else self.p
        getattr(self.family.checks, check)(p, config=self.config, **self.arguments)


def cases(
    name: str,
    family: CacheFamily,
    p: AttentionProblem,
    configs: tuple[Config | None, ...] | list[Config],
    **arguments: object,
) -> Iterator[Case]:
    for config in configs:
        yield Case(f"{name}-{config or 'selected'}", family, p, config, arguments)


# ---- Pages ----


def in_pages_of_every_size() -> Iterator[Case]:
    # Chunks in MIXED are SM80's where TMA cannot store O, and those with pages have code that also
    # has windows and softcap: they round elsewhere than those without.
    mixed = {
        name: p
        for name, p in MIXED.problems.items()
        if p.cu_seqlens_k is None and "TMA" not in name
    }
    names = ("full", "causal", "window", "softcap", "in_use_causal")
    of_16_bits = ("float16", "bfloat16")
    e4m3 = {
        f"{name}-{q}-{o}": replace(E4M3_PREFILL.problems[name], q_dtype=q, o_dtype=o)
        for name in names
        for q in of_16_bits
        for o in (*of_16_bits, "float32")
    }
    for family, configs, problems, sizes in (
        (DECODE, DECODE.paged, DECODE.problems, (1, 3, 16, 19, 64, 128, 256)),
        (PREFILL, PREFILL.paged_and_dense, PREFILL.problems, PREFILL_PAGE_SIZES),
        (E4M3_PREFILL, E4M3_PREFILL.paged, e4m3, (1, 3, 16, 64, 256)),
        (CHUNKS, CHUNKS.paged, CHUNKS.problems, (1, 3, 16, 64, 128, 192)),
        (MIXED, MIXED.paged, mixed, (1, 16, 64)),
    ):
        for name, p in problems.items():
            yield from cases(f"{family.name}-{name}", family, p, configs, page_sizes=sizes)


def mla_in_pages_of_every_size() -> Iterator[Case]:
    own = of_first_rows(MLA.paged, MLA.problems, FEW_PROBLEMS)
    for name, p, config in own:
        yield from cases(f"mla-{name}", MLA, p, [config], page_sizes=(1, 3, 16, 64, 128, 192))
    problems = {name: MLA.problems[name] for name in BIASED_PROBLEMS}
    for name, p, config in of_first_rows(biased(MLA.paged), problems, FEW_BIASED_PROBLEMS):
        for kind, bias in BIASES.items():
            case = f"mla-{name}-{kind}"
            yield from cases(case, MLA, replace(p, bias=bias), [config], page_sizes=(16, 19))


def in_pages_of_every_kind() -> Iterator[Case]:
    for kind in KINDS:
        for layout in ("contiguous", "heads_first"):
            layouts = ("contiguous", layout, layout, "contiguous")
            for family, p, configs in (
                (DECODE, DECODE.batch, SELECTED),
                (PREFILL, PREFILL.problems["causal"], PREFILL.paged),
            ):
                name = f"{family.name}-{kind}-{layout}"
                yield from cases(name, family, replace(p, layouts=layouts), configs, kind=kind)
        for family, p, configs in (
            (E4M3_PREFILL, replace(E4M3_PREFILL.batch, causal=True), E4M3_PREFILL.paged),
            (CHUNKS, CHUNKS.batch, CHUNKS.paged),
            (MLA, MLA.batch, MLA.paged),
            (MIXED, MIXED.batch, SELECTED),
        ):
            yield from cases(f"{family.name}-{kind}", family, p, configs, kind=kind)


def with_ids_of_no_page() -> Iterator[Case]:
    p = AttentionProblem(1, 1, 128, 4, 2, 128, "float16", seqused_k=(128,))
    yield from cases("decode", DECODE, p, SELECTED)
    p = AttentionProblem(1, 20, 512, 4, 2, seqused_k=(512,))
    yield from cases("chunks", CHUNKS, p, CHUNKS.paged)
    p = AttentionProblem(1, 2, 512, 16, 1, D_HEAD, seqused_k=(512,))
    yield from cases("mla", MLA, p, MLA.paged)
    p = replace(PREFILL.batch, batch=1, seqlen_k=300, seqused_k=(300,))
    for size in PAGE_SIZES_OF_EVERY_WAY:
        yield from cases(f"prefill-{size}", PREFILL, p, PREFILL.paged, page_size=size)


def with_numbers_of_no_slot() -> Iterator[Case]:
    """An engine that has rows in 64 bits may have anything in them."""
    p = AttentionProblem(1, 1, 128, 4, 2, 128, "float16", seqused_k=(128,))
    yield from cases("decode", DECODE, p, SELECTED)
    p = AttentionProblem(1, 20, 512, 4, 2, seqused_k=(512,))
    yield from cases("chunks", CHUNKS, p, CHUNKS.paged)
    p = AttentionProblem(1, 2, 512, 16, 1, D_HEAD, seqused_k=(512,))
    yield from cases("mla", MLA, p, MLA.paged)
    p = replace(PREFILL.batch, batch=1, seqlen_k=300, seqused_k=(300,))
    yield from cases("prefill", PREFILL, p, PREFILL.paged)


def with_lengths_beyond_the_table() -> Iterator[Case]:
    p = AttentionProblem(2, 1, 96, 4, 2, 128, "float16", seqused_k=(96, 96))
    yield from cases("decode", DECODE, p, SELECTED)
    for size in PAGE_SIZES_OF_EVERY_WAY:
        keys = 96 // size * size
        p = replace(PREFILL.batch, batch=1, seqlen_k=keys, seqused_k=(keys,))
        yield from cases(f"prefill-{size}", PREFILL, p, PREFILL.paged, page_size=size)


# ---- Batches ----


def batch_invariant_rows(configs: list[Config]) -> list[Config]:
    """Returns the rows whose blocks do not walk parts of the batch."""
    return [config for config in configs if not config.persistent]


def in_batches() -> Iterator[Case]:
    for name, p in DECODE.problems.items():
        yield from cases(f"decode-{name}", DECODE, p, SELECTED)
    for family in (CHUNKS, MLA):
        used = (5000, *family.batch.seqused_k[1:])
        p = replace(family.batch, causal=True, seqlen_k=5000, seqused_k=used)
        yield from cases(family.name, family, p, batch_invariant_rows(family.rows))


def repeated() -> Iterator[Case]:
    for family, configs in (
        (DECODE, SELECTED),
        (CHUNKS, CHUNKS.rows),
        (MLA, MLA.rows),
        (MIXED, SELECTED),
    ):
        yield from cases(family.name, family, family.batch, configs)


# ---- Graphs and workspaces ----


def in_graphs() -> Iterator[Case]:
    often = {"n_replays": 1000, "compare_every": 20}
    yield from cases("decode", DECODE, DECODE.batch, SELECTED, **often)
    for family in (CHUNKS, MLA):
        yield from cases(family.name, family, replace(family.batch, causal=True), family.paged)
    ends = {"n_replays": 50, "kind": "table ends"}
    yield from cases("decode-ends", DECODE, DECODE.batch, SELECTED, **ends)
    p = replace(CHUNKS.batch, causal=True)
    yield from cases("chunks-ends", CHUNKS, p, CHUNKS.paged, **ends)


def with_little_workspace() -> Iterator[Case]:
    """Lengths are on the device or known; bits depend on the batch or do not."""
    of_mixed = ("decodes and chunks", "all decoded", "one long cache")
    for invariant in (False, True):
        word = "-invariant" if invariant else ""
        for name in of_mixed:
            p = MIXED.problems[name]
            name = f"mixed-{name}{word}"
            options = {"batch_invariant": invariant, "offsets": (1,)}
            yield from cases(name, MIXED, p, SELECTED, **options)
        for family, problems, configs, offsets in (
            (DECODE, DECODE.problems, SELECTED, (0, 1, 100)),
            (CHUNKS, {"full": CHUNKS.batch}, CHUNKS.dense, (0,)),
            (MLA, {"full": MLA.batch}, MLA.dense, (0,)),
        ):
            options = {"batch_invariant": invariant, "offsets": offsets}
            if invariant and configs != SELECTED:
                configs = batch_invariant_rows(configs)
            for name, p in problems.items():
                name = f"{family.name}-{name}{word}"
                yield from cases(name, family, p, configs, **options)
                known = replace(p, seqused_k=None)
                yield from cases(f"{name}-known", family, known, configs, **options)


CHECKS = {
    "pages_change_no_bit": [*in_pages_of_every_size(), *mla_in_pages_of_every_size()],
    "pages_are_found": in_pages_of_every_kind(),
    "keys_of_no_page_read_as_zeros": with_ids_of_no_page(),
    "keys_of_no_slot_read_as_zeros": with_numbers_of_no_slot(),
    "lengths_beyond_the_table_are_cut": with_lengths_beyond_the_table(),
    "neighbours_change_no_bit": in_batches(),
    "repetition_changes_no_bit": repeated(),
    "replays_see_other_lengths_and_pages": in_graphs(),
    "workspace_is_enough": with_little_workspace(),
}


@pytest.mark.parametrize(
    "check, case",
    [
        pytest.param(check, case, id=f"{check}-{case.name}")
        for check, all_cases in CHECKS.items()
        for case in all_cases
    ],
)
def test_cache(check: str, case: Case) -> None:
    case.run(check)


def test_every_row_with_pages_is_walked() -> None:
    families = (DECODE, PREFILL, E4M3_PREFILL, CHUNKS, MLA, MIXED)
    walked = {config for family in families for config in family.rows}
    paged = [row.config for row in runnable_rows() if row.config.features & Feature.PAGED]
    assert [str(config) for config in paged if config not in walked] == []
