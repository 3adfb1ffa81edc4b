"""Writes the groups of the kernel table: where the rows of a family for an operation and a type of
K and V are, and which shapes they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .config import Config
from .facts import Arch, Dtype, Op

Group = tuple[int, int, int]  # arch, op, dtype
Shape = tuple[int, int, int]  # d_head, d_head_v, B_r


def group_of(config: Config) -> Group:
    return config.arch, config.op, config.dtype


def shape_of(config: Config) -> Shape:
    return config.d_head, config.d_head_v or config.d_head, config.B_r


def _group(group: Group, numbers: Sequence[int]) -> str:
    arch, op, dtype = Arch(group[0]).name, Op(group[1]).name, Dtype(group[2]).name
    place = f"[CONFIG_FAMILY_{arch}][FLASH_OP_{op}][FLASH_DTYPE_{dtype}]"
    return f"    {place} = {{{', '.join(map(str, numbers))}}},\n"


def kernel_groups(configs: Sequence[Config]) -> str:
    """Returns the definitions of kernel_shapes and kernel_groups, for ascending configurations."""
    groups, shapes = "", []
    first_row = 0
    for group, rows in groupby(configs, group_of):
        of_rows = [shape_of(config) for config in rows]
        of_group = sorted(set(of_rows))
        groups += _group(group, (first_row, len(of_rows), len(shapes), len(of_group)))
        first_row += len(of_rows)
        shapes += of_group
    lines = "".join(f"    {{{d_head}, {d_head_v}, {B_r}}},\n" for d_head, d_head_v, B_r in shapes)
    return f"""\
const kernel_shape_t kernel_shapes[] = {{
{lines}}};

const kernel_group_t kernel_groups[CONFIG_N_FAMILIES][CONFIG_N_OPS][N_DTYPES + 1] = {{
{groups}}};
"""
