"""Which rows have machine code for which compute capabilities."""

from __future__ import annotations

import pytest

from codegen.__main__ import main, parse_capabilities
from codegen.emit import generated_files
from codegen.facts import Arch, Dtype, Feature
from codegen.machine_code import HOPPER_FAMILIES, Code, code_of, has_machine_code
from codegen.selection import SelectionError
from codegen.sets import ship

CUDA = [config for config in ship() if config.arch >= Arch.SM80]


def test_every_row_is_built_where_no_capability_is_named():
    assert all(has_machine_code(config, ()) for config in ship())


def test_rows_of_hopper_are_for_hopper_alone():
    rows = [config for config in CUDA if config.arch in HOPPER_FAMILIES]
    assert rows
    assert all(has_machine_code(config, {90}) for config in rows)
    assert not any(has_machine_code(config, {80, 100, 120}) for config in rows)


def test_on_hopper_the_other_families_keep_what_no_row_of_its_own_serves():
    rows = [c for c in CUDA if c.arch not in HOPPER_FAMILIES and has_machine_code(c, {90})]
    of_sm80 = [config for config in rows if config.arch == Arch.SM80]
    plain = [config for config in of_sm80 if not config.features & Feature.DROPOUT]
    assert {config.async_copy for config in plain} == {0}
    assert {config.d_head for config in of_sm80} == {32, 64, 96, 128, 192, 256}
    assert {c.arch for c in rows} == {
        Arch.SM80,
        Arch.SM80_DECODE,
        Arch.SM80_MLA,
        Arch.SM80_WIDE,
        Arch.MIXED,
    }


def test_on_hopper_latent_attention_needs_others_for_the_bias_beside_what_is_converted():
    rows = [c for c in CUDA if c.arch == Arch.SM80_MLA and has_machine_code(c, {90})]
    assert all(c.features & Feature.BIAS for c in rows)
    assert {(Dtype(c.dtype), c.B_r, c.B_c) for c in rows} == {
        (Dtype.E4M3, 32, 16),
        (Dtype.E4M3, 64, 32),
        (Dtype.LATENT_E4M3, 64, 16),
    }


def test_on_hopper_wide_heads_need_others_for_the_bias_beside_e4m3():
    rows = [c for c in CUDA if c.arch == Arch.SM80_WIDE and has_machine_code(c, {90})]
    assert {Dtype(c.dtype) for c in rows} == {Dtype.E4M3}
    assert rows and all(c.features & Feature.BIAS for c in rows)


@pytest.mark.parametrize("capability", [80, 89, 100, 120])
def test_other_chips_have_all_rows_of_the_families_for_them(capability):
    rows = [config for config in CUDA if config.arch not in HOPPER_FAMILIES]
    assert all(has_machine_code(config, {capability}) for config in rows)


@pytest.mark.parametrize("code", [Code.BEFORE_HOPPER, Code.ONE_SOURCE])
def test_the_build_has_rows_with_code_of_their_own_in_lists_of_their_own(code):
    text = generated_files(ship())["kernels.cmake"]
    own = [Arch(config.arch).name for config in CUDA if code_of(config) == code]
    assert own
    for name in set(own):
        begin = text.index(f"set(FLASH_KERNEL_SOURCES_{name}{code.value}\n")
        paths = text[begin : text.index(")\n", begin)].splitlines()[1:]
        assert len(paths) == own.count(name)


def test_capabilities_are_numbers(tmp_path, capsys):
    assert parse_capabilities("80;90, 120") == {80, 90, 120}
    with pytest.raises(SelectionError, match="'9.0' is no compute capability"):
        parse_capabilities("9.0")
    assert main(["--out", str(tmp_path), "--capabilities", "hopper"]) == 2
    assert "'hopper' is no compute capability" in capsys.readouterr().err


def test_a_build_for_one_chip_leaves_out_what_others_need(tmp_path):
    assert main(["--out", str(tmp_path), "--capabilities", "80"]) == 0
    text = (tmp_path / "kernel_table.c").read_text()
    assert "&family_sm80,\n" in text
    assert "&family_sm90,\n" not in text
