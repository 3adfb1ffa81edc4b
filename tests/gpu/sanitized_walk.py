"""Runs rows of the table on a few small problems under compute-sanitizer. Other tests compare what
they compute.

    compute-sanitizer --tool racecheck python tests/gpu/sanitized_walk.py --racecheck [FILTER...]

Filters are those of `python -m flashattn list`: arch=SM90 d_head=64 dtype=BF16 is a part that takes
one or two minutes. With --seconds=40 it runs one problem of each kind, the smallest, then the next
larger ones, and starts none after 40 seconds; it says how many it has run. Each tensor lies in an
allocation of its own, so that every access beyond it is seen.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import flashattn  # noqa: E402
import torch  # noqa: E402
from bias_cases import BiasCase  # noqa: E402
from block_cases import BlockCase  # noqa: E402
from flashattn import Arch, DType, Feature, Op  # noqa: E402
from flashattn.cli.problem import chosen_kernels, is_cuda  # noqa: E402
from gpu_problems import (  # noqa: E402
    device_inputs,
    device_options,
    device_pages,
    heads_of,
    query,
    types_of,
)
from memory import E4M3  # noqa: E402
from paging import PagedProblem  # noqa: E402
from problems import AttentionProblem  # noqa: E402

# batch, seqlen_q, seqlen_k, heads, K/V heads: several blocks of keys, with rows and keys beyond the
# last whole tile; several sequences; no key.
SIZES = ((1, 200, 330, 2, 1), (2, 130, 70, 4, 2), (1, 70, 0, 2, 2))
# The same for decode kernels: pieces of one sequence, and whole sequences of many, with several
# heads in a block.
DECODE_SIZES = ((1, 1, 700, 8, 2), (2, 4, 333, 8, 2), (36, 1, 70, 8, 8), (3, 7, 3, 4, 1))
# The same for kernels of packed rows: pieces of one sequence, and tiles that end within a group.
CHUNK_SIZES = ((1, 40, 1100, 8, 2), (2, 70, 330, 5, 1), (3, 33, 3, 4, 1), (1, 70, 0, 2, 2))
# These have a V that is the first columns of K: there are few tiles of 32 or 64 rows.
MLA_SIZES = ((1, 1, 700, 16, 1), (2, 2, 333, 40, 1), (3, 3, 3, 8, 2), (1, 2, 0, 16, 1))
SIZES_OF_FAMILY = {
    Arch.SM80_DECODE: DECODE_SIZES,
    Arch.SM80_MLA: MLA_SIZES,
    Arch.SM80_WIDE: (*SIZES, *CHUNK_SIZES),
    Arch.SM90_DECODE: CHUNK_SIZES,
    Arch.SM90_MLA: MLA_SIZES,
    Arch.SM90_WIDE: (*SIZES, *CHUNK_SIZES),
}
# The first of those that are taken in turns: few tiles, and more blocks of keys than stages.
FEW_TILES = ((1, 70, 330, 2, 1),)
MANY_HEADS = 100  # of all sequences: blocks of persistent rows have several tiles, or sequences
BLOCK_KEYS = 64
MORE_KEYS = 600  # of calls with masks: enough that kernels leave out blocks which these hide
MASKS = (
    BiasCase(slopes=1, kind="bits", hidden_blocks=0.5),
    BiasCase(slopes=1, kind="float16", hidden_blocks=0.5),
    BlockCase(block_q=50, block_k=72),
)
WHOLE_TILES = (BlockCase(128, 128),)  # all that rows of SM90 with a fixed reference take
Run = tuple[AttentionProblem, flashattn.Config]
DECODE_LENGTHS = {"seqused_k": (0, 1, 63, 64, 65, 800, 300)}
RAGGED = {"cu_seqlens_q": (0, 70, 70, 161), "cu_seqlens_k": (0, 40, 60, 210)}


def masks_for(config: flashattn.Config) -> tuple[BiasCase | BlockCase, ...]:
    return WHOLE_TILES if config.fixed_reference else MASKS


def walks_parts(config: flashattn.Config) -> bool:
    return config.arch == Arch.SM90_MLA and bool(config.persistent)


def options_of(problem: AttentionProblem, config: flashattn.Config) -> dict[str, object]:
    """Returns the options of a call. Blocks that walk parts of the batch are few, so that each has
    several tiles."""
    few = {"n_multiprocessors": 4} if walks_parts(config) else {}
    return {**device_options(problem), **few}


def mixed_problems(config: flashattn.Config) -> Iterator[AttentionProblem]:
    """Returns problems of both parts and of one, if there are kernels of the row's type for
    both."""
    row = {**heads_of(config), **types_of(config), "seqused_k": (300, 333, 0, 70)}
    without_pages = replace(config, features=config.features & ~Feature.PAGED)
    for ends, causal in (((0, 1, 131, 134, 135), True), ((0, 2, 3, 3, 4), False)):
        p = AttentionProblem(4, 130, 333, 8, 2, **row, cu_seqlens_q=ends, causal=causal)
        if query(p, without_pages):
            yield p


def problems(
    config: flashattn.Config, first_sizes: tuple[tuple[int, ...], ...] = ()
) -> Iterator[AttentionProblem]:
    """Returns problems that the row serves, with each of its features by itself."""
    if config.arch == Arch.MIXED:
        yield from mixed_problems(config)
        return
    row = {**heads_of(config), **types_of(config)}
    if config.features & Feature.DROPOUT:
        row |= {"dropout_p": 0.3, "rng_state": (1, 2)}
    is_decode = config.arch == Arch.SM80_DECODE
    for sizes in (*first_sizes, *SIZES_OF_FAMILY.get(config.arch, SIZES)):
        yield AttentionProblem(*sizes, **row)
        if config.features & Feature.CAUSAL:
            yield AttentionProblem(*sizes, **row, causal=True)
        if config.features & Feature.WINDOW:
            yield AttentionProblem(*sizes, **row, window_size=(90, 20))
        if config.features & Feature.SOFTCAP:
            yield AttentionProblem(*sizes, **row, softcap=5.0)
        if config.features & Feature.BIAS and sizes[2] > 0:
            batch, seqlen_q, seqlen_k, *heads = sizes
            for bias in masks_for(config):
                more_keys = (batch, seqlen_q, seqlen_k + MORE_KEYS, *heads)
                yield AttentionProblem(*more_keys, **row, bias=bias)
    if is_decode:
        yield AttentionProblem(7, 2, 800, 8, 2, **row, **DECODE_LENGTHS)
        yield AttentionProblem(3, 3, 400, 8, 2, **row, cu_seqlens_q=(0, 1, 1, 4), causal=True)
    elif config.features & Feature.VARLEN:
        yield AttentionProblem(3, 91, 150, 8, 2, **row, **RAGGED)
    if config.dtype == DType.E4M3:
        if config.operand_dtype != DType.E4M3:
            row = {**row, "q_dtype": "float16"}
        row = {**row, "o_dtype": "float16"}
        scales = ((0.5, 2.0), (1.0, 0.25), (4.0, 1.0))
        few = (3, 3, 400, 8, 2) if is_decode else (3, 91, 150, 8, 2)
        yield AttentionProblem(*few, **row, k_descale=scales, v_descale=scales)
        if is_decode:
            row = {**row, "q_dtype": E4M3}
            yield AttentionProblem(*few, **row, q_descale=scales, k_descale=scales)
            yield AttentionProblem(*few, **row, q_token_scales=3)
    if walks_parts(config):
        lengths = tuple(i * 37 % 201 for i in range(14))
        yield AttentionProblem(14, 1, 200, 80, 1, **row, seqused_k=lengths)
        yield AttentionProblem(14, 2, 200, 16, 1, **row, seqused_k=lengths, causal=True)
    elif config.persistent:
        yield from many_tiles(config, row)


def many_tiles(config: flashattn.Config, row: dict[str, object]) -> Iterator[AttentionProblem]:
    """Returns problems with a few more tiles than the device has multiprocessors, so that blocks
    take a second one: of many heads, and of many sequences. They take most of racecheck's time, so
    there is one of each."""
    row = {**row, "causal": bool(config.features & Feature.CAUSAL)}
    n_tiles = flashattn.device_info(flashattn.Device.CUDA_CURRENT).n_multiprocessors + 8
    heads = -(-n_tiles // -(-130 // config.B_r))
    yield AttentionProblem(1, 130, 70, heads, heads, **row)
    if config.features & Feature.VARLEN:
        batch = -(-n_tiles // 4)
        q, k = (tuple(range(0, (batch + 1) * length, length)) for length in (70, 90))
        yield AttentionProblem(batch, 70, 90, 4, 2, **row, cu_seqlens_q=q, cu_seqlens_k=k)


def kind_of(p: AttentionProblem) -> Hashable:
    """Returns what problems have in common that differ in size alone."""
    keys = (p.seqlen_k > 0) + (p.seqlen_k >= BLOCK_KEYS)  # none, part of a block, or more
    has_many = p.batch * p.n_heads > MANY_HEADS
    return has_many, replace(p, batch=1, seqlen_q=1, seqlen_k=keys, n_heads=1, n_heads_kv=1)


def size_of(p: AttentionProblem) -> int:
    return p.batch * p.n_heads * p.seqlen_q * p.seqlen_k


def in_turns(config: flashattn.Config) -> Iterator[tuple[int, int, AttentionProblem]]:
    """Returns the row's problems, each with its place among those of its kind, by size, and its
    size."""
    has_tiles = SIZES[0] in SIZES_OF_FAMILY.get(config.arch, SIZES)
    kinds: dict[Hashable, list[AttentionProblem]] = defaultdict(list)
    for p in problems(config, FEW_TILES if has_tiles else ()):
        kinds[kind_of(p)].append(p)
    for kind in kinds.values():
        for place, p in enumerate(sorted(kind, key=size_of)):
            yield place, size_of(p), p


def rare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """Sets values that send tiles through their rare paths: scores that outgrow any reference taken
    from the last keys, and a NaN under the diagonal."""
    if k.dtype == torch.uint8:  # a scale of some tokens grows, and a byte of others is NaN
        unusual = k.clone()
        unusual[..., :8, :, 512 + 3] += 3
        unusual[..., -3:, :, 5] = 0x7F
        return [q, unusual, unusual]
    large, some_nan = k.float(), v.float()
    large[..., :8, :, :] *= 100
    some_nan[..., -3:, :, 5] = float("nan")
    if v.data_ptr() == k.data_ptr():
        large[..., -3:, :, 5] = float("nan")
        return as_read([q, large.to(k.dtype), v], v.shape[-1])
    return [q, large.clamp(-448, 448).to(k.dtype), some_nan.to(v.dtype)]


def as_read(tensors: list[torch.Tensor], d_head_v: int) -> list[torch.Tensor]:
    """Returns q, k and v as a row reads them whose V is the first columns of K; d_head_v 0: V is a
    tensor of its own."""
    q, k, v = tensors
    if k.dtype == torch.uint8:
        return [q, k, k]
    return [q, k, k[..., :d_head_v] if d_head_v else v]


def sinks_of(problem: AttentionProblem) -> torch.Tensor:
    return torch.zeros(problem.n_heads, device="cuda")


def page_sizes(config: flashattn.Config, racecheck: bool) -> tuple[int, ...]:
    """Returns sizes that are read key by key, by cp.async, and one that SM90 kernels read in boxes,
    by TMA. racecheck does not know that a warp's accesses come before what waits for the arrival of
    one of its lanes, after __syncwarp(), and it watches cp.async but not TMA. So where other warps
    read such keys by ordinary loads, it gets pages that TMA reads."""
    others_read = config.arch in (Arch.SM90_DECODE, Arch.SM90_MLA, Arch.SM90_WIDE) or (
        config.arch == Arch.SM90 and config.dtype == DType.E4M3
    )
    return (64, 16) if racecheck and others_read else (5, 16, 1)


def run_in_pages(
    problem: AttentionProblem, config: flashattn.Config, sizes: tuple[int, ...]
) -> None:
    """Runs padded keys in pages: of sizes that are read key by key and one that is read in boxes,
    both on the rarer paths too, with O of fp32 and sinks. A ragged problem has its longest length
    for every sequence."""
    padded = replace(problem, cu_seqlens_k=None)
    for page_size, is_rare in zip(sizes, (True, True, False)):
        tensors, where = device_pages(PagedProblem(padded, page_size))
        tensors = as_read(tensors, config.d_head_v)
        options = {**options_of(replace(padded, seqused_k=None), config), **where}
        if is_rare:
            tensors = rare(*tensors)
            options.update(out_dtype="float32", sinks=sinks_of(problem))
        flashattn.flash_attn_varlen_func(*tensors, config=config, **options)
    torch.cuda.synchronize()


def run(problem: AttentionProblem, config: flashattn.Config, racecheck: bool) -> None:
    """Runs with O in both of its types; fp32 takes the rarer path, with sinks."""
    if config.features & Feature.PAGED:
        return run_in_pages(problem, config, page_sizes(config, racecheck))
    tensors = as_read(device_inputs(problem), config.d_head_v)
    options = options_of(problem, config)
    unusual = rare(*tensors)
    for inputs in (tensors, unusual):
        flashattn.flash_attn_varlen_func(*inputs, config=config, **options)
    options.update(out_dtype="float32", sinks=sinks_of(problem))
    flashattn.flash_attn_varlen_func(*unusual, config=config, **options)
    torch.cuda.synchronize()


def run_gradients(problem: AttentionProblem, config: flashattn.Config) -> None:
    """Runs a row of gradients, of any O and LSE: one of dK and dV where it keeps dS for dQ, if it
    can, and by itself."""
    of_dq = config.op == Op.BACKWARD_DQ
    keyword = "dq_config" if of_dq else "dkv_config"
    options = {keyword: config, "sinks": sinks_of(problem), **device_options(problem)}
    calls: tuple[dict[str, object], ...] = ({},) if of_dq else ({}, {"dq": False})
    tensors = device_inputs(problem)
    for q, k, v in (tensors, rare(*tensors)):
        d_o, o = (torch.randn_like(q[..., : v.shape[-1]]) for _ in range(2))
        d_o[..., -3:, :, 5] = v[..., -1:, :1, 5] if v.numel() else 0  # NaN of rare()
        lse = torch.zeros(*q.shape[:-3], q.shape[-2], q.shape[-3], device="cuda")
        for wanted in calls:
            flashattn.flash_attn_backward(d_o, q, k, v, o, lse, **wanted, **options)
    torch.cuda.synchronize()


def runs_of(configs: list[flashattn.Config], takes_turns: bool) -> list[Run]:
    """Returns the problems of all rows, with the row: of one row after the other, or those that are
    the smallest of their kind before larger ones."""
    if not takes_turns:
        return [(problem, config) for config in configs for problem in problems(config)]
    turns = [(*turn, config) for config in configs for turn in in_turns(config)]
    return [(problem, config) for _, _, problem, config in sorted(turns, key=lambda x: x[:2])]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(usage="sanitized_walk.py [OPTION...] [FILTER...]")
    parser.add_argument("--racecheck", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("filters", nargs="*")
    options = parser.parse_intermixed_args(arguments)
    begin = time.monotonic()
    rows = chosen_kernels(options.filters, runnable=True)
    configs = [row.config for row in rows if is_cuda(row.config)]
    runs = runs_of(configs, options.seconds is not None)
    assert runs, "no row matches"
    for n, (problem, config) in enumerate(runs):
        if options.seconds is not None:
            print(f"{n} of {len(runs)} problems, {time.monotonic() - begin:.0f} s", flush=True)
            if time.monotonic() - begin > options.seconds:
                return
        if config.op == Op.FORWARD:
            run(problem, config, options.racecheck)
        else:
            run_gradients(problem, config)
    print(f"{len(configs)} rows, {len(runs)} problems")


if __name__ == "__main__":
    main(sys.argv[1:])
