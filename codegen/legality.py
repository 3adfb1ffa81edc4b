"""Which configurations are legal, and which are worth building.

The rules of single fields are in facts.py, from which those of the library are generated. The rules
between fields are here, and in the library in the families' files of src/cuda, from
src/cuda/sm80/sm80.c to src/cuda/mixed.c, in the same order and the same words. A test compares the
two.
"""

from __future__ import annotations

from collections.abc import Iterator

from .config import Config, converts, operand_dtype
from .facts import FAMILIES, FRAGMENT, MMA_ROWS, SM80, Arch, Dtype, Family, Feature, Op

# Repeats DECODE_SHARED_BYTES_MAX of kernels/sm80/decode_kernel.h.
SM80_DECODE_SHARED_BYTES_MAX = 226 * 1024

# These repeat kernels/sm80/mla_kernel.h.
SM80_MLA_ROW_BYTES = 20
SM80_MLA_BIAS_BYTES = 24
SM80_MLA_CONVERTED_STAGES = 2
FP32_BYTES = 4

SM90_LOADING_WARPS = 4
SM90_CONVERTING_WARPS = 4
SM90_WIDER_D_HEAD = 192  # beside which kernels have a d_head_v
# These repeat kernels/sm90/sm90_kernel.h.
SM90_PANEL_BYTES = 128
SM90_STATE_BYTES = 2944
SM90_CONVERSION_BYTES = 320
SM90_CONVERTED_KEYS = 32
SM90_SHARED_BYTES_MAX = 227 * 1024


def _field_rules(config: Config, family: Family) -> Iterator[str]:
    """Checks each field, switches that need another one, and that a kernel has one name."""
    if config.op not in family.operations:
        yield f"op is {config.op}: the family has no such value"
        return
    rows = family.operations[Op(config.op)]
    for field in config.__dataclass_fields__:
        if field not in ("arch", "op"):
            rule = rows.rule(field)
            yield from rule.broken(field, getattr(config, field), family.arch.name)
    for switch, needed in rows.layout.needs:
        if getattr(config, switch) and not getattr(config, needed):
            yield f"{switch} is 1: it needs {needed}, which is 0"
    if (config.dtype, config.operand_dtype) not in rows.row_types:
        yield (
            f"operand_dtype is {config.operand_dtype}: the family has no such value with dtype "
            f"{config.dtype}"
        )
    if config.d_head_v and config.d_head_v == config.d_head:
        yield f"d_head_v is {config.d_head_v}: 0 where it is that of d_head"


def _fragments(config: Config, field: str, axis: str) -> Iterator[str]:
    """Checks the fragments held at a time: 0, or a power of two from 2 to all of the contraction,
    or to half of it when the next ones are loaded meanwhile."""
    count = getattr(config, field)
    contraction = getattr(config, axis)
    buffered = config.mma_double_buffer_loads
    most = contraction // FRAGMENT // (2 if buffered else 1)
    if count < 0 or count == 1 or count & (count - 1):
        yield f"{field} is {count}: not 0 or a power of two from 2 on"
    if count > most:
        with_buffer = " and double buffering" if buffered else ""
        yield f"{field} is {count}: at most {most} with {axis} {contraction}{with_buffer}"


def _sm80_rules(config: Config) -> Iterator[str]:
    if config.B_r % (MMA_ROWS * config.n_warps):
        yield (
            f"n_warps is {config.n_warps}: B_r {config.B_r} does not divide into rows of "
            f"{MMA_ROWS} for each"
        )
    q_field, k_field, v_field = SM80.counts.fields
    yield from _fragments(config, q_field, "d_head")
    yield from _fragments(config, k_field, "d_head")
    yield from _fragments(config, v_field, "B_c")
    q_count, k_count = getattr(config, q_field), getattr(config, k_field)
    if q_count not in (0, k_count):
        yield f"{q_field} is {q_count}: neither 0 nor {k_field}, {k_count}"
    if config.features & Feature.PAGED and not config.features & Feature.VARLEN:
        yield "features has paged: it needs varlen, which is not there"
    if config.features & Feature.BIAS and not config.optimized_softmax:
        yield "features has bias: it needs optimized_softmax, which is 0"
    if converts(config):
        if config.async_copy:
            yield "async_copy is 1: with this dtype it is 0"
    elif config.features & Feature.PAGED and not config.async_copy:
        yield "features has paged: with this dtype it needs async_copy, which is 0"


def sm80_decode_shared_bytes(config: Config) -> int:
    """Each warp has a ring of n_stages stages, with a slot of B_c keys for K and one for V."""
    slot = config.B_c * config.d_head * Dtype(config.dtype).size
    return config.n_warps * config.n_stages * 2 * slot


def _sm80_decode_rules(config: Config) -> Iterator[str]:
    n_bytes = sm80_decode_shared_bytes(config)
    if n_bytes > SM80_DECODE_SHARED_BYTES_MAX:
        yield (
            f"d_head {config.d_head}, B_c {config.B_c}, n_warps {config.n_warps} and n_stages "
            f"{config.n_stages} take {n_bytes} bytes of shared memory: at most "
            f"{SM80_DECODE_SHARED_BYTES_MAX}"
        )


def sm80_mla_shared_bytes(config: Config) -> int:
    """Counts the bytes of n_stages blocks of K, and of two of fp16 that blocks of e4m3 become; and
    of what warps exchange: for each row its scores from each warp that shares it, P of two steps,
    and some more."""
    operand = operand_dtype(config).size
    of_element = config.n_stages * Dtype(config.dtype).size
    if converts(config):
        of_element += SM80_MLA_CONVERTED_STAGES * operand
    sharing = config.n_warps * MMA_ROWS // config.B_r
    of_row = sharing * (config.B_c + 1) * FP32_BYTES + 2 * config.B_c * operand + SM80_MLA_ROW_BYTES
    if config.features & Feature.BIAS:
        of_row += SM80_MLA_BIAS_BYTES
    return of_element * config.B_c * config.d_head + config.B_r * of_row


def _sm80_mla_rules(config: Config) -> Iterator[str]:
    if config.n_warps * MMA_ROWS not in (2 * config.B_r, 4 * config.B_r):
        yield (
            f"n_warps is {config.n_warps}: two or four for each {MMA_ROWS} rows of B_r, which is "
            f"{config.B_r}"
        )
    n_bytes = sm80_mla_shared_bytes(config)
    if n_bytes > SM80_DECODE_SHARED_BYTES_MAX:
        yield (
            f"B_r {config.B_r}, B_c {config.B_c}, n_warps {config.n_warps} and n_stages "
            f"{config.n_stages} take {n_bytes} bytes of shared memory: at most "
            f"{SM80_DECODE_SHARED_BYTES_MAX}"
        )


def _sm90_other_warps(config: Config) -> int:
    """Counts the warps of the producer, and of the converter if there is one."""
    return SM90_LOADING_WARPS + (SM90_CONVERTING_WARPS if converts(config) else 0)


def sm90_warps(config: Config) -> int:
    """Counts the warps that do not multiply, and one warp per 16 rows."""
    return _sm90_other_warps(config) + config.B_r // MMA_ROWS


def sm90_d_head_v(config: Config) -> int:
    """Returns the columns of V and O."""
    return config.d_head_v if config.d_head_v > 0 else config.d_head


def sm90_shared_bytes(config: Config) -> int:
    """Counts the bytes of Q, of n_stages blocks of K and of V, in whole panels, and of the
    state."""
    panels, panels_of_v = (
        -(-columns * operand_dtype(config).size // SM90_PANEL_BYTES)
        for columns in (config.d_head, sm90_d_head_v(config))
    )
    keys = config.n_stages * config.B_c
    tiles = (config.B_r + keys) * panels + keys * panels_of_v
    state = SM90_STATE_BYTES + (SM90_CONVERSION_BYTES if converts(config) else 0)
    return tiles * SM90_PANEL_BYTES + state


def _sm90_conversion_rules(config: Config) -> Iterator[str]:
    """Checks that the converter can convert blocks of this shape."""
    if config.d_head not in (64, 128, 256):
        yield f"d_head is {config.d_head}: with this dtype it is 64, 128 or 256"
    if config.B_c % SM90_CONVERTED_KEYS:
        yield f"B_c is {config.B_c}: with this dtype it is a multiple of {SM90_CONVERTED_KEYS}"


def _sm90_tile_rules(config: Config) -> Iterator[str]:
    n_warps = sm90_warps(config)
    if config.n_warps != n_warps:
        yield (
            f"n_warps is {config.n_warps}: {n_warps} with B_r {config.B_r} and this dtype, "
            f"{_sm90_other_warps(config)} and one for each {MMA_ROWS} rows"
        )
    if converts(config):
        yield from _sm90_conversion_rules(config)
    if config.ping_pong and config.B_r < 128:
        yield f"ping_pong is 1: it needs a B_r of 128 or more, which is {config.B_r}"


def _sm90_memory_rules(config: Config) -> Iterator[str]:
    n_bytes = sm90_shared_bytes(config)
    if n_bytes > SM90_SHARED_BYTES_MAX:
        yield (
            f"d_head {config.d_head}, d_head_v {sm90_d_head_v(config)}, B_r {config.B_r}, B_c "
            f"{config.B_c} and n_stages {config.n_stages} take {n_bytes} bytes of shared memory: "
            f"at most {SM90_SHARED_BYTES_MAX}"
        )


def _sm90_rules(config: Config) -> Iterator[str]:
    if config.d_head_v and config.d_head != SM90_WIDER_D_HEAD:
        yield (
            f"d_head_v is {config.d_head_v}: it needs a d_head of {SM90_WIDER_D_HEAD}, which is "
            f"{config.d_head}"
        )
    yield from _sm90_tile_rules(config)
    if config.features & Feature.VARLEN and not config.longest_first:
        yield "features has varlen: it needs longest_first, which is 0"
    if config.features & Feature.PAGED and not config.features & Feature.VARLEN:
        yield "features has paged: it needs varlen, which is not there"
    if config.features & Feature.BIAS and config.fixed_reference:
        yield "features has bias: it needs a running maximum, but fixed_reference is 1"
    yield from _sm90_memory_rules(config)


def _sm90_decode_rules(config: Config) -> Iterator[str]:
    yield from _sm90_tile_rules(config)
    if not config.features & Feature.VARLEN:
        yield "features has no varlen: SM90_DECODE kernels need it"
    yield from _sm90_memory_rules(config)


def _sm90_mla_rules(config: Config) -> Iterator[str]:
    n_warps = 16 if converts(config) else 12
    if config.n_warps != n_warps:
        yield f"n_warps is {config.n_warps}: {n_warps} with this dtype"
    if not config.features & Feature.VARLEN:
        yield "features has no varlen: SM90_MLA kernels need it"
    if config.features & Feature.BIAS and converts(config):
        yield "features has bias, which SM90_MLA kernels that convert K do not add"


def _mixed_rules(config: Config) -> Iterator[str]:
    if not config.features & Feature.VARLEN:
        yield "features has no varlen: sequences of a batch differ in length"


RULES_AMONG_FIELDS = {
    (Arch.SM80, Op.FORWARD): _sm80_rules,
    (Arch.SM80_DECODE, Op.FORWARD): _sm80_decode_rules,
    (Arch.SM80_MLA, Op.FORWARD): _sm80_mla_rules,
    (Arch.SM90, Op.FORWARD): _sm90_rules,
    (Arch.SM90_DECODE, Op.FORWARD): _sm90_decode_rules,
    (Arch.SM90_MLA, Op.FORWARD): _sm90_mla_rules,
    (Arch.MIXED, Op.FORWARD): _mixed_rules,
}


def _rules(config: Config) -> Iterator[str]:
    """Yields broken rules in order and lazily, so that each rule may rely on those before it."""
    arch = Arch(config.arch)
    yield from _field_rules(config, FAMILIES[arch])
    rules = RULES_AMONG_FIELDS.get((arch, config.op))
    if rules is not None:
        yield from rules(config)


def broken_rule(config: Config) -> str | None:
    """Returns the first rule of its family that the configuration breaks; None if it is legal."""
    if config.arch not in set(Arch):
        return f"arch is {config.arch}: no such kernel family"
    return next(_rules(config), None)


def legal(config: Config) -> bool:
    return broken_rule(config) is None


def worth_building(config: Config) -> bool:
    """Filters legal configurations of SM80 for tuning: some block shapes keep all of Q in
    registers, and others load it by fragments."""
    q_count, k_count = config.Q_mma_load_K_fragments, config.K_mma_load_K_fragments
    whole_q = q_count == 0
    if not whole_q and q_count != k_count:
        return False
    if config.B_r == 64:
        if config.n_warps == 8:
            return False
        return not (config.B_c == 32 and whole_q) and not (config.B_c == 64 and not whole_q)
    return not whole_q
