"""The table walk: every row that the device runs is compared with the oracle on every problem that
its features, its head dimension and its loads serve, and refuses every other. What each row uses of
the device is checked too.

Problems come first in the order of tests, so that rows share the oracle's answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import flashattn
import pytest
import torch
from flashattn import Arch, DType, Feature
from gpu_problems import (
    HOPPER_FAMILIES,
    check,
    contiguous_rows,
    cuda_kernels,
    heads_of,
    is_for_hopper_alone,
    needs_alignment,
    query,
    run,
    stores,
    takes_rows,
    types_of,
)
from problems import AttentionProblem

FULL = Feature(0)
CAUSAL, WINDOW, SOFTCAP, VARLEN = Feature.CAUSAL, Feature.WINDOW, Feature.SOFTCAP, Feature.VARLEN


@dataclass(frozen=True)
class Case:
    """A problem for rows of any head dimensions; its d_head is theirs less `narrower`, and its
    d_head_v theirs less `narrower_v`, None: d_head, or theirs if they have one of their own."""

    features: Feature
    problem: AttentionProblem
    narrower: int = 0
    aligned: bool = True
    narrower_v: int | None = None
    for_decode: bool = False  # the oracle's rules would need luck with few rows

    def for_row(self, config: flashattn.Config) -> AttentionProblem:
        types = types_of(config)
        if self.problem.o_dtype:
            types["o_dtype"] = self.problem.o_dtype
        chunks = 2 if config.dtype == DType.E4M3 else 1  # of 8 elements, in 16 bytes
        heads = heads_of(config)
        if self.narrower_v is not None:
            heads["d_head_v"] = (config.d_head_v or config.d_head) - self.narrower_v * chunks
        heads["d_head"] = config.d_head - self.narrower * chunks
        return replace(self.problem, **heads, **types)


def _case(
    features: Feature,
    *sizes: int,
    narrower: int = 0,
    narrower_v: int | None = None,
    aligned: bool = True,
    **options,
):
    return Case(features, AttentionProblem(*sizes, **options), narrower, aligned, narrower_v)


def _few(features: Feature, *sizes: int, **options):
    return replace(_case(features, *sizes, **options), for_decode=True)


_RAGGED = {"cu_seqlens_q": (0, 70, 70, 161), "cu_seqlens_k": (0, 40, 60, 210)}
# There are many sequences, some without tokens, and a long one: more tiles than a device has
# multiprocessors, of very different lengths.
_MANY_Q = (*(i * 37 % 150 for i in range(50)), 900, *(i * 53 % 41 for i in range(30)))
_MANY_K = (*(i * 61 % 170 for i in range(50)), 1100, *(i * 29 % 300 for i in range(30)))
_MANY = {
    "cu_seqlens_q": (0, *accumulate(_MANY_Q)),
    "cu_seqlens_k": (0, *accumulate(_MANY_K)),
}
CASES = {
    "full": _case(FULL, 2, 65, 129, 4, 2),
    "tile_edges": _case(FULL, 1, 128, 256, 2, 2),
    "past_tile_edges": _case(FULL, 1, 129, 257, 3, 1),
    "long": _case(FULL, 1, 150, 1023, 2, 1),
    "one_key": _case(FULL, 2, 70, 1, 2, 2),
    "no_key": _case(FULL, 2, 70, 0, 2, 2),
    "few_queries": _case(FULL, 4, 3, 700, 8, 2),
    "one_query": _few(FULL, 40, 1, 300, 8, 2),
    "one_query_of_each_head": _few(FULL, 40, 1, 300, 3, 3),
    "one_query_long": _few(FULL, 1, 1, 5000, 32, 4),
    "one_query_short": _few(FULL, 600, 1, 65, 4, 1),
    "most_rows": _few(FULL, 3, 8, 700, 8, 2),
    "few_padded": _few(FULL, 20, 2, 150, 4, 1, layouts=("padded",) * 4),
    "few_heads_first": _few(FULL, 20, 2, 150, 4, 1, layouts=("heads_first",) * 4),
    "few_shifted_output": _few(
        FULL, 20, 2, 150, 4, 1, layouts=("contiguous",) * 3 + ("shifted",)
    ),
    "few_narrower": _few(FULL, 20, 2, 150, 4, 1, narrower=8),
    "few_narrower_v": _few(FULL, 20, 2, 150, 4, 1, narrower_v=16),
    "few_narrower_keys": _few(FULL, 20, 2, 150, 4, 1, narrower=16, narrower_v=8),
    "few_narrower_v_long": _few(FULL, 1, 1, 5000, 32, 4, narrower_v=8),
    "few_narrower_v_fp32_o": _few(FULL, 2, 4, 700, 16, 4, narrower_v=8, o_dtype="float32"),
    "few_growing": _few(FULL, 20, 2, 700, 4, 1, values="growing"),
    "few_one_large_key": _few(FULL, 20, 2, 700, 4, 1, values="one_large_key"),
    "few_fp32_o": _few(FULL, 2, 4, 700, 16, 4, o_dtype="float32"),
    "few_no_key": _few(FULL, 9, 2, 0, 4, 4),
    "few_causal": _few(CAUSAL, 10, 5, 700, 8, 2, causal=True),
    "few_causal_more_queries": _few(CAUSAL, 10, 7, 3, 8, 2, causal=True),
    "few_window": _few(WINDOW, 10, 4, 700, 8, 2, window_size=(90, 3)),
    "few_window_past_keys": _few(WINDOW, 10, 7, 3, 8, 2, window_size=(1, 0)),
    "few_softcap": _few(SOFTCAP, 10, 4, 300, 8, 2, softcap=3.0),
    "few_seqused_k": _few(
        VARLEN, 8, 2, 5000, 8, 2, seqused_k=(0, 1, 63, 64, 65, 5000, 900, 129)
    ),
    "few_seqused_k_many": _few(
        VARLEN, 300, 1, 600, 4, 1, seqused_k=tuple(i * 37 % 600 for i in range(300))
    ),
    "few_seqused_q": _few(
        VARLEN | CAUSAL, 3, 4, 700, 8, 2, seqused_q=(0, 4, 2), seqused_k=(9, 700, 77), causal=True
    ),
    "few_ragged": _few(
        VARLEN | CAUSAL, 5, 4, 400, 8, 2, causal=True, cu_seqlens_q=(0, 1, 1, 5, 8, 9),
        cu_seqlens_k=(0, 40, 60, 460, 460, 500),
    ),
    "few_ragged_queries": _few(
        VARLEN, 4, 3, 400, 8, 2, cu_seqlens_q=(0, 3, 4, 4, 6), seqused_k=(400, 0, 6, 129)
    ),
    "scale": _case(FULL, 1, 100, 100, 2, 2, softmax_scale=0.05),
    "growing": _case(FULL, 1, 150, 300, 2, 1, values="growing"),
    "one_large_key": _case(FULL, 1, 150, 300, 2, 1, values="one_large_key"),
    "identical_keys": _case(FULL, 1, 150, 300, 2, 1, values="identical_keys"),
    "narrower": _case(FULL, 1, 100, 150, 2, 1, narrower=8),
    "narrower_v": _case(FULL, 1, 100, 150, 2, 1, narrower_v=16),
    "narrower_keys": _case(FULL, 1, 100, 150, 2, 1, narrower=16, narrower_v=0),
    "narrower_v_causal": _case(CAUSAL, 1, 200, 200, 2, 2, narrower_v=8, causal=True),
    "narrower_v_window": _case(WINDOW, 1, 130, 170, 2, 1, narrower_v=8, window_size=(20, 7)),
    "narrower_v_softcap": _case(SOFTCAP, 1, 100, 170, 2, 2, narrower_v=8, softcap=3.0),
    "narrower_v_ragged": _case(VARLEN, 3, 95, 150, 4, 2, narrower_v=16, **_RAGGED),
    "narrower_v_fp32_o": _case(FULL, 2, 65, 129, 4, 2, narrower_v=8, o_dtype="float32"),
    "narrower_v_shifted_output": _case(
        FULL, 2, 65, 90, 2, 1, narrower_v=8, layouts=("contiguous",) * 3 + ("shifted",)
    ),
    "odd_d_head_v": _case(FULL, 1, 100, 150, 2, 1, narrower_v=3, aligned=False),
    "odd_d_head_v_fp32_o": _case(
        FULL, 1, 100, 150, 2, 1, narrower_v=3, aligned=False, o_dtype="float32"
    ),
    "padded": _case(FULL, 2, 100, 150, 2, 1, layouts=("padded",) * 4),
    "heads_first": _case(FULL, 2, 100, 150, 2, 1, layouts=("heads_first",) * 4),
    "shifted_output": _case(FULL, 2, 65, 90, 2, 1, layouts=("contiguous",) * 3 + ("shifted",)),
    "fp32_o": _case(FULL, 2, 65, 129, 4, 2, o_dtype="float32"),
    "fp32_o_long": _case(FULL, 1, 150, 1023, 2, 1, o_dtype="float32"),
    "fp32_o_no_key": _case(FULL, 2, 70, 0, 2, 2, o_dtype="float32"),
    "fp32_o_growing": _case(FULL, 1, 150, 300, 2, 1, values="growing", o_dtype="float32"),
    "fp32_o_narrower": _case(FULL, 1, 100, 150, 2, 1, narrower=8, o_dtype="float32"),
    "fp32_o_padded": _case(FULL, 2, 100, 150, 2, 1, layouts=("padded",) * 4, o_dtype="float32"),
    "fp32_o_shifted": _case(
        FULL, 2, 65, 90, 2, 1, layouts=("contiguous",) * 3 + ("shifted",), o_dtype="float32"
    ),
    "fp32_o_odd_d_head": _case(
        FULL, 1, 100, 150, 2, 1, narrower=3, aligned=False, o_dtype="float32"
    ),
    "fp32_o_causal": _case(CAUSAL, 1, 200, 200, 2, 2, causal=True, o_dtype="float32"),
    "fp32_o_causal_more_queries": _case(
        CAUSAL, 1, 150, 70, 2, 1, causal=True, o_dtype="float32"
    ),
    "fp32_o_window": _case(WINDOW, 1, 130, 170, 2, 1, window_size=(20, 7), o_dtype="float32"),
    "fp32_o_ragged": _case(VARLEN, 3, 95, 150, 4, 2, o_dtype="float32", **_RAGGED),
    "fp32_o_many_causal": _case(
        VARLEN | CAUSAL, len(_MANY_Q), 900, 1100, 3, 1, causal=True, o_dtype="float32", **_MANY
    ),
    "fp32_o_ragged_keys": _case(
        VARLEN, 2, 60, 130, 2, 2, cu_seqlens_k=(0, 130, 133), o_dtype="float32"
    ),
    "odd_d_head": _case(FULL, 1, 100, 150, 2, 1, narrower=3, aligned=False),
    "shifted": _case(FULL, 1, 100, 150, 2, 1, aligned=False, layouts=("shifted",) * 4),
    "odd_strides": _case(
        FULL, 1, 100, 150, 2, 1, aligned=False, layouts=("padded_by_three",) * 4
    ),
    "causal": _case(CAUSAL, 1, 200, 200, 2, 2, causal=True),
    "causal_more_keys": _case(CAUSAL, 1, 67, 190, 4, 2, causal=True),
    "causal_more_queries": _case(CAUSAL, 1, 150, 70, 2, 1, causal=True),
    "window": _case(WINDOW, 1, 130, 170, 2, 1, window_size=(20, 7)),
    "window_left": _case(WINDOW, 1, 130, 130, 2, 1, window_size=(33, -1)),
    "window_right": _case(WINDOW, 1, 130, 130, 2, 1, window_size=(-1, 9)),
    "window_causal": _case(WINDOW, 1, 260, 260, 2, 1, causal=True, window_size=(63, -1)),
    "softcap": _case(SOFTCAP, 1, 100, 170, 2, 2, softcap=3.0),
    "softcap_causal": _case(SOFTCAP | CAUSAL, 1, 100, 170, 2, 2, softcap=30.0, causal=True),
    "seqused_k": _case(VARLEN, 3, 90, 200, 2, 1, seqused_k=(0, 200, 77)),
    "seqused_q": _case(VARLEN, 3, 90, 200, 2, 1, seqused_q=(0, 90, 66), seqused_k=(9, 200, 77)),
    "seqused_q_causal": _case(
        VARLEN | CAUSAL, 3, 300, 200, 2, 1, seqused_q=(300, 129, 1), causal=True
    ),
    "ragged_seqused_q": _case(
        VARLEN, 3, 95, 150, 4, 2, seqused_q=(65, 0, 91), seqused_k=(40, 20, 99), **_RAGGED
    ),
    "ragged": _case(VARLEN, 3, 95, 150, 4, 2, **_RAGGED),
    "ragged_causal": _case(VARLEN | CAUSAL, 3, 95, 150, 4, 2, causal=True, **_RAGGED),
    "many": _case(VARLEN, len(_MANY_Q), 900, 1100, 3, 1, **_MANY),
    "many_causal": _case(VARLEN | CAUSAL, len(_MANY_Q), 900, 1100, 3, 1, causal=True, **_MANY),
    "ragged_queries": _case(VARLEN, 2, 80, 65, 2, 2, cu_seqlens_q=(0, 33, 110)),
    "ragged_keys": _case(VARLEN, 2, 60, 130, 2, 2, cu_seqlens_k=(0, 130, 133)),
}  # fmt: skip
ROWS = {row.name: row for row in contiguous_rows()}
MANIFEST = Path(__file__).resolve().parents[2] / "codegen" / "ship.manifest"
SHIPPED = MANIFEST.read_text(encoding="utf-8").split()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_row_agrees_with_the_oracle(case: Case, name: str) -> None:
    config = ROWS[name].config
    problem = case.for_row(config)
    is_served = not case.features & ~config.features
    is_served &= case.aligned or not needs_alignment(config)
    is_served &= takes_rows(problem, config)
    assert query(problem, config).supported == is_served  # asks about Q, K and V
    if is_served and case.for_decode and config.arch != Arch.SM80_DECODE:
        return
    if is_served and stores(config, problem.layouts[3]):
        check(problem, config)
    else:
        with pytest.raises(NotImplementedError, match=name):
            run(problem, config=config)


def _local_memory(config: flashattn.Config) -> int:
    """Returns how many bytes of local memory a thread of a ship row may have: in SM90's loading
    warps, which have few registers beside three warpgroups that multiply, or which schedule a
    ragged batch or read pages, more where a mask is to be looked at, and with warps that convert,
    where O takes half of the registers, of latent tokens a few more; in SM90_DECODE where it adds
    ALiBi or a mask, and with a converter but at d_head 128; in SM90_WIDE ends of ranges, and with a
    converter some of what a thread carries from block to block; and a register or two where a row
    has softcap, or four in SM90, whose rows with softcap have windows and chunks, eight or ten of
    d_head 128 and 192: ends of ranges, of which loops read one per block. In rows that multiply
    e4m3 at d_head 256 it is also what a consumer carries from tile to tile: O and a part of P V,
    then S, take most of its registers."""
    if config.arch == Arch.SM80_DECODE:
        return 0
    if config.arch == Arch.SM80_WIDE:  # its PTX on 9.0; its machine code of 8.0 spills nothing
        return 8 if config.B_c == 32 else 0
    if config.arch == Arch.SM90 and config.operand_dtype == DType.E4M3:  # 24 registers to load
        of_load = 128 if Feature.SOFTCAP in Feature(config.features) else 64
        return of_load + (112 if config.d_head == 256 else 0)
    if config.arch == Arch.SM90 and config.dtype == DType.E4M3 and config.d_head == 256:
        return 104
    if Feature.BIAS in Feature(config.features) and config.arch in (Arch.SM90, Arch.SM90_DECODE):
        of_decode = {64: 32, 128: 24}.get(config.d_head, 16)  # the factors of two rows among them
        return 48 if config.arch == Arch.SM90 else of_decode
    is_crowded = config.B_r == 192 or Feature.VARLEN in Feature(config.features)
    is_paged = Feature.PAGED in Feature(config.features)
    has_many_ranges = config.arch == Arch.SM90 and config.d_head in (128, 192)
    has_many_ranges &= Feature.SOFTCAP in Feature(config.features)
    if config.arch == Arch.SM90 and is_crowded:
        if Feature.WINDOW in Feature(config.features) and (is_paged or config.B_r == 192):
            return 40
        return 40 if has_many_ranges else 32 if is_paged else 24
    if config.dtype == DType.LATENT_E4M3:
        return 16
    if config.arch == Arch.SM90_DECODE and config.dtype == DType.E4M3:
        return 8 if config.d_head == 128 else 32
    if config.arch == Arch.SM90_WIDE:
        return 64 if config.dtype == DType.E4M3 else 24
    if Feature.SOFTCAP in Feature(config.features):
        return 32 if has_many_ranges else 16 if config.arch == Arch.SM90 else 8
    return 0


def _shared_bytes(config: flashattn.Config) -> tuple[int, int]:
    """Returns (least, most) bytes for Q and the blocks of K and V, two bytes per element, one of
    e4m3. SM80_MLA and SM80_WIDE have Q in registers, blocks of 16 bits beside those of e4m3 and of
    latent tokens, and warps exchange scores and P. SM90 and SM90_DECODE have panels of 64 columns
    and barriers, and slots of O and the next Q if there is room."""
    if config.arch == Arch.SM80:
        exact = 2 * config.d_head * (config.B_r + 2 * config.B_c)
        return exact, exact
    if config.arch == Arch.SM80_DECODE:
        n_bytes = 1 if config.dtype == DType.E4M3 else 2
        exact = n_bytes * config.d_head * config.n_warps * config.n_stages * 2 * config.B_c
        return exact, exact
    if config.arch == Arch.SM80_MLA and config.dtype == DType.LATENT_E4M3:
        of_key = 2 * 2 * config.d_head + config.n_stages * (640 + 4 * config.n_warps)
        return of_key * config.B_c, of_key * config.B_c + 32 * 1024
    if config.arch == Arch.SM80_MLA:
        of_element = config.n_stages + 4 if config.dtype == DType.E4M3 else 2 * config.n_stages
        keys = of_element * config.d_head * config.B_c
        return keys, keys + 32 * 1024
    if config.arch == Arch.SM80_WIDE:  # K and V; of e4m3 one block of fp16 each
        of_element = config.n_stages + 2 if config.dtype == DType.E4M3 else 2 * config.n_stages
        keys = 2 * of_element * config.d_head * config.B_c
        return keys, keys + 32 * 1024
    keys = config.n_stages * config.B_c
    if config.operand_dtype == DType.E4M3:  # V is transposed, and O has two bytes
        columns = -(-config.d_head // 128) * 128
        # SM90_DECODE has V as it landed, and transposed.
        of_v = 2 * columns if config.arch == Arch.SM90_DECODE else config.d_head
        least = columns * (config.B_r + keys) + of_v * keys
        ones = 8 * keys  # in rows behind each stage of V
        return least, least + ones + 4096 + columns * config.B_r + 2 * config.d_head * config.B_r
    columns, columns_of_v = (
        -(-x // 64) * 64 for x in (config.d_head, config.d_head_v or config.d_head)
    )
    least = 2 * columns * (config.B_r + keys) + 2 * columns_of_v * keys
    return least, least + 4096 + 2 * 2 * columns * config.B_r


@pytest.mark.parametrize("name", ROWS)
def test_row_fits_the_device(name: str) -> None:
    config = ROWS[name].config
    device = flashattn.Device.CUDA + torch.cuda.current_device()
    used = flashattn.kernel_resources(config, device)
    assert used == flashattn.kernel_resources(str(config))
    assert used.local_memory <= _local_memory(config) or name not in SHIPPED, "spilled"
    assert used.threads == 32 * config.n_warps and 0 < used.registers <= 255
    least, most = _shared_bytes(config)
    assert least <= used.shared_memory <= most
    assert used.shared_memory <= flashattn.device_info(device).shared_memory_per_block
    assert used.blocks_per_multiprocessor >= 1


@pytest.mark.parametrize(
    "arch, d_heads",
    [
        (Arch.SM80, (32, 64, 96, 128, 192, 256)),
        (Arch.SM80_DECODE, (64, 128, 256)),
        (Arch.SM80_MLA, (576,)),
        (Arch.SM80_WIDE, (512,)),
        (Arch.SM90, (64, 96, 128, 192, 256)),
        (Arch.SM90_DECODE, (64, 128, 256)),
        (Arch.SM90_MLA, (576,)),
        (Arch.SM90_WIDE, (512,)),
    ],
)
def test_table_has_rows_of_both_types_for_every_head_dimension(arch: Arch, d_heads: tuple) -> None:
    served = {(r.config.dtype, r.config.d_head) for r in cuda_kernels() if r.config.arch == arch}
    converts_only = arch in (Arch.SM80_MLA, Arch.SM80_WIDE) and is_for_hopper_alone()
    dtypes = (DType.E4M3,) if converts_only else (DType.FP16, DType.BF16)
    assert served >= {(dtype, d_head) for dtype in dtypes for d_head in d_heads}


def test_rows_that_do_not_run_here_name_the_compute_capability_that_they_need() -> None:
    capability = flashattn.device_info(flashattn.Device.CUDA_CURRENT).compute_capability
    for kernel in cuda_kernels():
        is_sm90 = kernel.config.arch in HOPPER_FAMILIES
        runs = capability == 90 if is_sm90 else capability >= 80
        assert kernel.is_runnable == runs
        if not runs:
            with pytest.raises(LookupError, match=r"compute capability [89]\.0"):
                flashattn.lookup_kernel(kernel.config)
