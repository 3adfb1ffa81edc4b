"""Which types of Q and O a row takes belongs to its dtype and its operand_dtype: a row that
multiplies K and V of e4m3 as such is another configuration than one that converts them.
"""

import re
from dataclasses import replace

import pytest

from codegen.config import c_initialiser, converts, kernel_name, operand_dtype
from codegen.emit import generated_files
from codegen.facts import FAMILIES, Arch, Dtype, Op, rows_of
from codegen.legality import broken_rule, legal
from codegen.selection import SelectionError, select
from codegen.short_form import format_config, parse_config

CONVERTING = parse_config("SM90 (E4M3, 128, 128, 128, 16): stages_2+overlap")
MULTIPLYING = parse_config("SM90 (E4M3/E4M3, 128, 128, 128, 12): stages_2+overlap")


FORWARD = rows_of(Arch.SM90, Op.FORWARD)


def test_both_are_legal():
    assert broken_rule(CONVERTING) is None
    assert broken_rule(MULTIPLYING) is None


def test_they_are_two_configurations():
    assert CONVERTING != MULTIPLYING
    for form in (format_config, kernel_name, c_initialiser):
        assert form(CONVERTING) != form(MULTIPLYING)
    assert parse_config(format_config(MULTIPLYING)) == MULTIPLYING


def test_they_differ_where_nothing_else_does():
    alike = replace(CONVERTING, operand_dtype=MULTIPLYING.operand_dtype)
    assert CONVERTING < alike
    assert kernel_name(CONVERTING) != kernel_name(alike)


def test_only_one_converts():
    assert (operand_dtype(CONVERTING), converts(CONVERTING)) == (Dtype.FP16, True)
    assert (operand_dtype(MULTIPLYING), converts(MULTIPLYING)) == (Dtype.E4M3, False)
    assert not legal(replace(CONVERTING, n_warps=12))  # that of a block without a converter
    assert not legal(replace(MULTIPLYING, n_warps=16))


def test_each_takes_types_of_its_own():
    outputs = [Dtype.FP16, Dtype.BF16, Dtype.FP32]
    assert FORWARD.outputs(Dtype.E4M3, 0) == dict.fromkeys((Dtype.FP16, Dtype.BF16), outputs)
    assert FORWARD.outputs(Dtype.E4M3, Dtype.E4M3) == {Dtype.E4M3: outputs}


def test_the_table_has_a_row_for_each():
    files = generated_files([CONVERTING, MULTIPLYING])
    facts = files["config_facts.c"].partition("row_types_sm90_fwd[] = {\n")[2].partition("\n};")[0]
    entries = re.findall(r"^    \{(\w+), (\w+),$", facts, re.MULTILINE)
    table = files["kernel_table.c"]
    row = r'"(flash_fwd_sm90_\w+)",\n.*\n.*\n.*\n     &row_facts_sm90_fwd,\n'
    rows = re.findall(row + r"     &row_types_sm90_fwd\[(\d)\]\}", table)
    assert {name: entries[int(index)] for name, index in rows} == {
        kernel_name(CONVERTING): ("FLASH_DTYPE_E4M3", "0"),
        kernel_name(MULTIPLYING): ("FLASH_DTYPE_E4M3", "FLASH_DTYPE_E4M3"),
    }


def test_the_operand_dtype_goes_with_the_dtype():
    halves = replace(MULTIPLYING, dtype=Dtype.BF16)
    reason = "operand_dtype is 4: the family has no such value with dtype 2"
    assert broken_rule(halves) == reason


def test_only_two_families_have_such_rows():
    having = (FORWARD, rows_of(Arch.SM90_DECODE, Op.FORWARD))
    for family in FAMILIES.values():
        for rows in family.operations.values():
            operands = {operand for _, operand in rows.row_types}
            assert operands == ({0, Dtype.E4M3} if rows in having else {0})


def test_selections_can_name_it():
    assert all(c.operand_dtype == 0 for c in select("ship operand_dtype=0 dtype=E4M3"))
    assert {c.operand_dtype for c in select("ship operand_dtype=E4M3")} == {Dtype.E4M3}
    with pytest.raises(SelectionError, match="no configuration passes"):
        select("ship operand_dtype=E4M3 dtype=BF16")
    with pytest.raises(SelectionError, match="unknown value 'FP8'"):
        select("ship operand_dtype=FP8")
