"""Which configurations are legal, and which are worth building.

The rules of single fields are in facts.py, from which those of the library are generated. The rules
between fields are in the kernels' headers, from which kernel_rules.py reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from .config import Config
from .facts import FAMILIES, Arch, Family, Op, rows_name
from .kernel_rules import rules_of


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


def _rules(config: Config) -> Iterator[str]:
    """Yields broken rules in order and lazily, so that each rule may rely on those before it."""
    arch = Arch(config.arch)
    yield from _field_rules(config, FAMILIES[arch])
    family, op = FAMILIES[arch], Op(config.op)
    is_optional = family.on_cpu or not family.operations[op].layout.has_kernels
    for rule in rules_of(rows_name(family, op), is_optional):
        broken = rule(config)
        if broken is not None:
            yield broken


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
