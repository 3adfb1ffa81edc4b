"""Runs attention problems on the current CUDA device and compares them with the float64 oracle. The
problems are those of the CPU tests; device_memory has their layouts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

import expectation
import flashattn
import numpy as np
import torch
from device_memory import ALIGNED_LAYOUTS, Guarded, allocate, lengths, upload
from expectation import Expected, assert_agrees
from flashattn import Arch, DType, Feature, Kernel, latent
from memory import E4M3, LATENT, dtype_of
from paging import PagedProblem, make_pages
from problems import (
    LENGTHS_OF_A_CALL,
    AttentionProblem,
    fill_unused,
    forward_kernels,
    make_inputs,
)

DTYPES = ("float16", "bfloat16")
# Types of K and V, and head dimensions, that reach kernels of every family.
TYPES = (("float16", 64), ("bfloat16", 128), ("bfloat16", 256), ("float16", 96), (E4M3, 128))
HEADS = (*((d_head, None) for d_head in (32, 64, 96, 128, 192, 256, 512)), (192, 128))
CONTIGUOUS = ("contiguous",) * 4
MLA_FAMILIES = (Arch.SM80_MLA, Arch.SM90_MLA)
HOPPER_FAMILIES = (Arch.SM90, Arch.SM90_DECODE, Arch.SM90_MLA, Arch.SM90_WIDE)
_TANH_ERROR = 1.6e-6  # of a softcap, in units of it: docs/numerics.md
DECODE_ROWS = 32  # rows of a K/V head, at most, for decode kernels


def cuda_kernels() -> list[Kernel]:
    """Returns the kernels of every CUDA family, whether or not this device runs them."""
    return [kernel for kernel in forward_kernels() if kernel.config.arch >= Arch.SM80]


@functools.lru_cache(maxsize=1)
def runnable_rows() -> list[Kernel]:
    """Returns the kernels of the CUDA families that this device runs."""
    return [kernel for kernel in cuda_kernels() if kernel.is_runnable]


def is_for_hopper_alone() -> bool:
    """Says whether the library was built for compute capability 9.0 alone, which leaves out rows
    that are of no use there: those of SM80 that load by cp.async, and most of SM80_MLA."""
    plain = (k for k in cuda_kernels() if not k.config.features & Feature.DROPOUT)
    return not any(kernel.config.async_copy for kernel in plain)


def rows() -> list[Kernel]:
    """Returns the rows that have kernels of their own, for any K and V."""
    others = (Arch.MIXED, *MLA_FAMILIES)
    return [row for row in runnable_rows() if row.config.arch not in others]


def mla_rows() -> list[Kernel]:
    """Returns the rows for a V that is the first columns of K."""
    return [row for row in runnable_rows() if row.config.arch in MLA_FAMILIES]


def mixed_rows() -> list[Kernel]:
    """Returns the rows for ragged batches, which rows of other families compute together."""
    return [row for row in runnable_rows() if row.config.arch == Arch.MIXED]


def contiguous_rows() -> list[Kernel]:
    """Returns the rows that read keys outside of pages."""
    return [row for row in rows() if not row.config.features & Feature.PAGED]


def types_of(config: flashattn.Config) -> dict[str, str]:
    """Returns the types of a problem for the row, as AttentionProblem names them."""
    if config.operand_dtype == DType.E4M3:
        return {"dtype": E4M3, "q_dtype": E4M3, "o_dtype": "bfloat16"}
    if config.dtype in (DType.E4M3, DType.LATENT_E4M3):
        dtype = E4M3 if config.dtype == DType.E4M3 else LATENT
        return {"dtype": dtype, "q_dtype": "bfloat16", "o_dtype": "bfloat16"}
    return {"dtype": {DType.FP16: "float16", DType.BF16: "bfloat16"}[config.dtype]}


def heads_of(config: flashattn.Config, d_head_v: int | None = None) -> dict[str, int | None]:
    """Returns the head dimensions of a problem as wide as the row, as AttentionProblem names them,
    or with another d_head_v."""
    return {"d_head": config.d_head, "d_head_v": d_head_v or config.d_head_v or None}


def typed(p: AttentionProblem, dtype: str, d_head: int) -> AttentionProblem:
    """Returns the problem in these types; K and V of e4m3 have scales."""
    if dtype != E4M3:
        return replace(p, dtype=dtype, d_head=d_head)
    types = {"dtype": E4M3, "q_dtype": "bfloat16", "o_dtype": "bfloat16"}
    return replace(p, d_head=d_head, k_descale=0.5, v_descale=-1.5, **types)


def needs_alignment(config: flashattn.Config) -> bool:
    """Says whether the row loads whole chunks of 16 bytes, and refuses other alignments."""
    return config.arch != Arch.SM80 or config.async_copy == 1


def takes_rows(p: AttentionProblem, config: flashattn.Config) -> bool:
    """Says whether a K/V head has no more rows (queries x query heads) than the family takes."""
    rows = p.seqlen_q * (p.n_heads // p.n_heads_kv)
    return config.arch != Arch.SM80_DECODE or rows <= DECODE_ROWS


@functools.lru_cache(maxsize=12)
def _made_inputs(p: AttentionProblem) -> list[np.ndarray]:
    return make_inputs(p)


def _shared_inputs(p: AttentionProblem) -> list[np.ndarray]:
    """Returns q, k and v that are not to be changed. Those of the last problems are kept, because
    making them takes longer than computing with them; masks, sinks, used lengths and padding do
    not change them."""
    return _made_inputs(
        replace(
            p,
            causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
            softmax_scale=None, sinks=None, seqused_q=None, seqused_k=None, leftpad_k=None,
            k_descale=None, v_descale=None, layouts=CONTIGUOUS,
        )
    )  # fmt: skip


def host_inputs(p: AttentionProblem) -> list[np.ndarray]:
    return [x.copy() for x in _shared_inputs(p)]


def device_inputs(p: AttentionProblem) -> list[torch.Tensor]:
    return [upload(x, layout) for x, layout in zip(_shared_inputs(p), p.layouts)]


def device_shapes(p: AttentionProblem) -> list[torch.Tensor]:
    """Returns q, k and v without values, for questions about sizes and alignment."""
    shapes = (p.q_shape, p.k_shape, p.v_shape)
    q, kv, _ = p.types
    return [
        allocate(shape, dtype, layout)
        for shape, dtype, layout in zip(shapes, (q, kv, kv), p.layouts)
    ]


def device_options(p: AttentionProblem) -> dict[str, object]:
    """Returns keywords of flash_attn_varlen_func, whose arrays are in device memory."""
    options = p.call_options()
    for name in ("cu_seqlens_q", "cu_seqlens_k", *LENGTHS_OF_A_CALL):
        options[name] = lengths(options[name])
    scales = ("k_descale", "v_descale", "q_descale", "mask_head_scale")
    for name in (*scales, "sinks", "alibi_slopes", "attn_mask", "mask_bits"):
        if isinstance(options.get(name), np.ndarray):
            options[name] = on_device(options[name])
    mask = options.get("attn_mask")
    if isinstance(mask, flashattn.BlockMask):
        blocks = on_device(np.ascontiguousarray(mask.blocks))
        options["attn_mask"] = flashattn.BlockMask(blocks, mask.block_q, mask.block_k)
    return options


def on_device(array: np.ndarray) -> torch.Tensor:
    """Returns a copy in device memory; where elements of the innermost axis are no neighbours,
    those of the copy are neither."""
    as_torch = {"bfloat16": np.int16, "uint32": np.int32}.get(array.dtype.name, array.dtype)
    tensor = torch.from_numpy(array.view(as_torch))
    if array.dtype.name == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    if array.flags.c_contiguous:
        return tensor.cuda()
    apart = torch.empty(*array.shape, 3, dtype=tensor.dtype, device="cuda")[..., 1]
    return apart.copy_(tensor)


def device_pages(
    q: PagedProblem, inputs: list[np.ndarray] | None = None
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Returns q, k and v with pages, in the problem's layouts, and keywords for the pages."""
    on_host = replace(q, p=replace(q.p, layouts=CONTIGUOUS))
    tensors, where = make_pages(on_host, inputs or _shared_inputs(q.dense))
    arrays = {
        name: torch.from_numpy(np.array(x)).cuda() if isinstance(x, np.ndarray) else x
        for name, x in where.items()
    }
    return [upload(x, layout) for x, layout in zip(tensors, q.p.layouts)], arrays


def query(p: AttentionProblem, config: object = None) -> flashattn.Support:
    return flashattn.query_support(*device_shapes(p), config=config, **device_options(p))


def stores(config: flashattn.Config, layout: str) -> bool:
    """Says whether the row stores O in such a layout: SM90 stores it by TMA, and fp32 in pairs."""
    return config.arch != Arch.SM90 or layout in ALIGNED_LAYOUTS


def configs_for(p: AttentionProblem) -> list[flashattn.Config]:
    """Returns the rows that serve a problem."""
    tensors, options = device_shapes(p), device_options(p)
    return [
        row.config
        for row in runnable_rows()
        if stores(row.config, p.layouts[3])
        and flashattn.query_support(*tensors, config=row.config, **options)
    ]


def paged_options(q: PagedProblem, where: dict[str, torch.Tensor]) -> dict[str, object]:
    """Returns keywords of flash_attn_varlen_func for the pages that device_pages() made."""
    return {**device_options(replace(q.p, seqused_k=None)), **where}


def configs_for_pages(q: PagedProblem) -> list[flashattn.Config]:
    """Returns the rows that serve a problem in pages."""
    tensors, where = device_pages(q)
    options = paged_options(q, where)
    return [
        row.config
        for row in runnable_rows()
        if row.config.features & Feature.PAGED
        and stores(row.config, q.p.layouts[3])
        and flashattn.query_support(*tensors, config=row.config, **options)
    ]


def run(
    p: AttentionProblem,
    tensors: list[torch.Tensor] | None = None,
    config: object = None,
    **options: object,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) of one call; outputs are poisoned and guarded."""
    q, k, v = tensors or device_inputs(p)
    columns = latent.CODES if p.dtype == LATENT else v.shape[-1]
    o = Guarded((*q.shape[:-1], columns), p.types[2], p.layouts[3])
    lse = Guarded((*q.shape[:-3], q.shape[-2], q.shape[-3]), "float32")
    flashattn.flash_attn_varlen_func(
        q, k, v, out=o.tensor, lse=lse.tensor, config=config, **{**device_options(p), **options}
    )
    return o.take(), lse.take()


def check(
    p: AttentionProblem, config: object = None, inputs: list[np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Runs the problem, asserts that it agrees with the oracle, and returns (O, LSE)."""
    tensors = inputs and [upload(x, layout) for x, layout in zip(inputs, p.layouts)]
    return _check(p, run(p, tensors, config), config, f"replay: {p}", inputs)


def check_in_pages(q: PagedProblem, config: object = None) -> tuple[np.ndarray, np.ndarray]:
    """Does the same as check() for a problem whose keys lie in pages."""
    pages, where = device_pages(q)
    outputs = run(replace(q.p, seqused_k=None), pages, config, **where)
    return _check(q.dense, outputs, config, f"replay: {q}")


def _check(
    p: AttentionProblem,
    outputs: tuple[np.ndarray, np.ndarray],
    config: object,
    replay: str,
    inputs: list[np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    if inputs is None:
        expected = _expected(replace(p, layouts=CONTIGUOUS))
    else:
        expected = expected_of(*inputs, o_dtype=dtype_of(p.types[2]), **p.options())
    return check_outputs(p, outputs, expected, config, replay)


def check_outputs(
    p: AttentionProblem,
    outputs: tuple[np.ndarray, np.ndarray],
    expected: Expected,
    config: flashattn.Config | None,
    replay: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Asserts that (O, LSE) of the row, None: the selected one, are what is expected with four
    roundings, and returns them with the oracle's values in rows that are not used."""
    o, lse = outputs
    fill_unused(p, o, lse)
    if not _may_round_anywhere(config):
        expected = replace(expected, naive_o=expected.naive_o[:1])
    assert_agrees(o, lse, expected, f"{replay}, config={str(config) if config else None!r}")
    return o, lse


def _may_round_anywhere(config: flashattn.Config | None) -> bool:
    """Says whether the softmax may be relative to something else than the row's maximum: a fixed
    reference, or in SM80 rows one that lags behind. None stands for the row that the library
    selects."""
    configs = (
        [row.config for row in rows()] if config is None or config.arch == Arch.MIXED else [config]
    )
    return any(c.fixed_reference or c.optimized_softmax for c in configs)


def expected_of(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o_dtype: np.dtype | None = None,
    **options: object,
) -> Expected:
    """Computes what is expected. o_dtype None: that of q."""
    of_tanh = _TANH_ERROR * float(options.get("softcap", 0))
    if q.dtype.itemsize == 1:
        expected = expectation.expected_of_fp8([q, k, v], o_dtype, **options)
    else:
        p_dtype = np.dtype(np.float16) if v.dtype.itemsize == 1 else v.dtype
        expected = expectation.expected_of([q, k, v], p_dtype, o_dtype, roundings=4, **options)
    return replace(expected, score_error=of_tanh)


def numbers_of(p: AttentionProblem, k: np.ndarray) -> np.ndarray:
    """Returns K as kernels multiply it: latent tokens rounded to fp32, then to bf16."""
    if p.dtype != LATENT:
        return k
    return latent.decode(k).astype(np.float32).astype(dtype_of("bfloat16"))


def check_every_row(p: AttentionProblem) -> None:
    configs = configs_for(p)
    assert configs, f"no row serves {p}"
    for config in configs:
        check(p, config)


def check_every_row_in_pages(q: PagedProblem) -> None:
    configs = configs_for_pages(q)
    assert configs, f"no row serves {q}"
    for config in configs:
        check_in_pages(q, config)


def assert_every_row_is_reached(problems: Iterable[AttentionProblem], feature: Feature) -> None:
    """Asserts that the problems, in every head dimension and every type of Q but e4m3, are served
    by each row without pages that has the feature."""
    reached = {
        config
        for p in problems
        for d_head, d_head_v in HEADS
        for dtype in (*DTYPES, E4M3)
        for config in configs_for(replace(typed(p, dtype, d_head), d_head_v=d_head_v))
    }
    having = {row.config for row in (*rows(), *mixed_rows()) if row.config.features & feature}
    having = {config for config in having if config.operand_dtype != DType.E4M3}
    missing = {config for config in having - reached if not config.features & Feature.PAGED}
    assert having and not missing
    assert {config.arch for config in reached} >= {Arch.SM80, Arch.SM80_DECODE, Arch.MIXED}


def same_bits(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b))


@functools.lru_cache(maxsize=64)
def _expected(p: AttentionProblem) -> Expected:
    return expected_of(*_shared_inputs(p), o_dtype=dtype_of(p.types[2]), **p.options())
