"""The generated files are sorted and complete, and written only where something changed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.config import kernel_name
from codegen.emit import generated_files, with_kernels
from codegen.facts import Arch, Op
from codegen.output import update
from codegen.selection import select
from codegen.sets import ship
from codegen.short_form import format_config, parse_config

rows_of_ship = st.lists(st.sampled_from(ship()), min_size=1)
kernels_of_ship = st.lists(st.sampled_from(with_kernels(ship())), min_size=1)


# The kernels of these are one file each.
VECTOR_FAMILIES = {
    Arch.AVX2: "avx2",
    Arch.AVX512: "avx512",
    Arch.AVX512_BF16: "avx512bf16",
    Arch.NEON: "neon",
    Arch.NEON_BF16: "neonbf16",
}


def stem(config):
    family = VECTOR_FAMILIES.get(config.arch)
    pass_ = "fwd" if config.op == Op.FORWARD else "bwd"
    if config.arch == Arch.AMX and pass_ == "bwd":
        return "flash_bwd_amx"
    return f"flash_{pass_}_{family}" if family else kernel_name(config)


def kernel_file(config):
    return f"kernels/{stem(config)}{'.cu' if config.arch >= Arch.SM80 else '.c'}"


@given(rows_of_ship)
def test_the_table_is_strictly_ascending(configs):
    """The input may have any order and repetitions."""
    lines = generated_files(configs)["kernel_table.c"].splitlines()
    names = [line.strip(' ",') for line in lines if line.startswith('     "')]
    assert names == [kernel_name(config) for config in sorted(set(configs))]


@given(kernels_of_ship)
def test_every_row_has_its_short_form_and_its_file(configs):
    files = generated_files(configs)
    for config in configs:
        comment = f"/* {format_config(config)} */\n"
        assert f"    {comment}    {{{{" in files["kernel_table.c"]
        assert files[kernel_file(config)].count(comment) == 1
        source = f"${{CMAKE_CURRENT_LIST_DIR}}/{kernel_file(config)}"
        assert files["kernels.cmake"].count(source) == 1


def test_rows_that_are_not_compiled_are_in_the_table_alone():
    rows = select("ship arch=SM90 d_head=64 dtype=BF16")
    compiled, others = rows[:3], rows[3:]
    files = generated_files(rows, compiled)
    for config in rows:
        assert f'"{kernel_name(config)}",\n' in files["kernel_table.c"]
    for config in compiled:
        assert f"(void (*)(void)){kernel_name(config)},\n" in files["kernel_table.c"]
    for config in others:
        assert kernel_file(config) not in files
        assert f'"{kernel_name(config)}",\n     NULL,\n' in files["kernel_table.c"]
        assert kernel_file(config) not in files["kernels.cmake"]


def test_lines_keep_to_the_width():
    """Kernel names and short forms are exempt, because they cannot be folded."""
    files = generated_files(ship())
    for path in ("config_facts.h", "kernel_table.c", *map(kernel_file, with_kernels(ship()))):
        text = re.sub(r"\bflash_\w+_d\w+|/\* .* \*/", "NAME", files[path])
        assert max(map(len, text.splitlines())) <= 100


def test_a_cuda_kernel_is_a_wrapper_around_the_template():
    config = parse_config("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer")
    source = generated_files([config])[kernel_file(config)]
    assert '#include "sm80/forward.cuh"\n' in source
    assert 'extern "C" __global__ void\n' in source
    assert f"\n{kernel_name(config)}(\n    const __grid_constant__ flash_params_t params)" in source
    assert "sm80_forward<config>(params);" in source


def test_a_decode_kernel_has_a_template_and_parameters_of_its_own():
    config = parse_config("SM80_DECODE (BF16, 128, 16, 16, 4): stages_3+causal+varlen+paged")
    files = generated_files([config])
    source = files[kernel_file(config)]
    parameters = "const __grid_constant__ sm80_decode_params_t params"
    assert '#include "sm80/decode.cuh"\n' in source
    assert "(decode_block_threads(&config), decode_blocks_per_sm(&config))\n" in source
    assert f"\n{kernel_name(config)}(\n    {parameters})" in source
    assert "sm80_decode<config>(params);" in source
    assert '#include "sm80/decode_kernel.h"\n' in files["kernel_table.c"]


def test_a_kernel_of_sm90_decode_has_a_template_and_parameters_of_its_own():
    config = parse_config("SM90_DECODE (BF16, 128, 64, 128, 8): stages_3+varlen")
    files = generated_files([config])
    source = files[kernel_file(config)]
    parameters = "const __grid_constant__ sm90_decode_params_t params"
    assert '#include "sm90/decode.cuh"\n' in source
    assert "__launch_bounds__(sm90_block_threads(&config), 1)\n" in source
    assert f"\n{kernel_name(config)}(\n    {parameters})" in source
    assert "sm90_decode<config>(params);" in source
    assert '#include "sm90/decode_kernel.h"\n' in files["kernel_table.c"]


def test_a_kernel_of_sm80_mla_has_a_template_and_bounds_of_its_own():
    config = parse_config("SM80_MLA (BF16, 576/512, 64, 32, 8): stages_3")
    source = generated_files([config])[kernel_file(config)]
    bounds = "decode_block_threads(&config), sm80_mla_blocks_per_sm(&config)"
    assert '#include "sm80/mla.cuh"\n' in source
    assert f"__launch_bounds__({bounds})\n" in source
    assert "sm80_mla<config>(params);" in source


def test_a_kernel_of_sm80_wide_has_a_template_of_its_own():
    config = parse_config("SM80_WIDE (BF16, 512, 64, 32, 8): stages_2")
    source = generated_files([config])[kernel_file(config)]
    assert '#include "sm80/wide.cuh"\n' in source
    assert "sm80_wide<config>(params);" in source


def test_a_kernel_of_sm90_mla_has_a_template_of_its_own():
    config = parse_config("SM90_MLA (BF16, 576/512, 64, 64, 12): stages_2+varlen")
    source = generated_files([config])[kernel_file(config)]
    assert '#include "sm90/halves.cuh"\n' in source
    assert "sm90_halves<config>(params);" in source


@pytest.mark.parametrize(
    "row, keeps_ds",
    [
        ("SM80 backward_dkv (BF16, 64, 64, 64, 4): stages_1", False),
        ("SM80 backward_dkv (BF16, 128, 64, 64, 4): stages_1", True),
        ("SM90 backward_dkv (BF16, 64, 96, 128, 12): stages_3+causal", False),
        ("SM90 backward_dkv (BF16, 128, 64, 128, 12): stages_3+causal", True),
        ("SM90 backward_dkv (BF16, 192/128, 64, 64, 12): stages_4+causal+varlen", True),
        ("SM90 backward_dkv (BF16, 192/128, 64, 64, 12): stages_4+causal+window+varlen", False),
    ],
)
def test_a_row_that_keeps_ds_has_a_second_kernel(row: str, keeps_ds: bool):
    config = parse_config(row)
    files = generated_files([config])
    name = kernel_name(config)
    second = f"{name}_dq_of_ds"
    pointer = f"(void (*)(void)){second}" if keeps_ds else "NULL"
    assert f"     (void (*)(void)){name},\n     {pointer},\n" in files["kernel_table.c"]
    assert (f"void {second}(" in files["kernel_table.c"]) == keeps_ds
    assert (f"\n{second}(" in files[kernel_file(config)]) == keeps_ds


def test_a_row_without_a_kernel_is_in_the_table_alone():
    config = parse_config("MIXED (BF16, 256, 16): varlen+paged")
    files = generated_files([config])
    assert not [path for path in files if path.startswith("kernels/")]
    name = kernel_name(config)
    assert f'"{name}",\n     NULL,\n     NULL,\n     &family_mixed,\n' in files["kernel_table.c"]
    assert files["kernel_table.c"].count(name) == 1
    assert "set(FLASH_KERNEL_SOURCES_MIXED)\n" in files["kernels.cmake"]


def test_the_build_knows_the_files_and_flags_of_each_family():
    lines = generated_files(select("ship arch=REFERENCE,AVX512"))["kernels.cmake"].splitlines()
    assert "set(FLASH_KERNEL_SOURCES_AVX2)" in lines
    assert "set(FLASH_KERNEL_SOURCES_SM80)" in lines
    assert "set(FLASH_KERNEL_SOURCES_SM80_DECODE)" in lines
    assert "set(FLASH_KERNEL_SOURCES_SM90_DECODE)" in lines
    assert "set(FLASH_KERNEL_FLAGS_REFERENCE)" in lines
    assert "set(FLASH_KERNEL_FLAGS_AVX2 -mavx2 -mfma -mf16c)" in lines
    begin = lines.index("set(FLASH_KERNEL_SOURCES_AVX512")
    sources = lines[begin + 1 : lines.index(")", begin)]
    assert sources == [
        f'    "${{CMAKE_CURRENT_LIST_DIR}}/kernels/flash_{operations}_avx512.c"'
        for operations in ("fwd", "bwd")
    ]


def test_a_vector_familys_file_has_its_kernels_and_names_their_types():
    files = generated_files(select("ship arch=AVX512 dtype=FP16,FP32"))
    source = files["kernels/flash_fwd_avx512.c"]
    mixed = ("FP16", "BF16", "FP32", "Q8_0", "Q4_0")  # V may be of another type than K
    types = " | \\\n     ".join(f"1u << FLASH_DTYPE_{name}" for name in mixed)
    assert source.startswith(f"#define CPU_KERNEL_TYPES \\\n    ({types})\n")
    assert source.count('#include "cpu/avx512.h"\n') == 1
    assert source.count("avx512_forward(&config, params, task, scratch);") == 4
    assert "flash_avx512_few_rows" not in source
    gradients = files["kernels/flash_bwd_avx512.c"]
    assert gradients.count('#include "cpu/avx512_backward.h"\n') == 1
    assert gradients.count("avx512_backward_dq(&config, params, gradients, task, scratch);") == 4
    assert gradients.count("avx512_backward_dkv(&config, params, gradients, task, scratch);") == 4


@pytest.mark.parametrize("others", [[], select("ship arch=AVX512 dtype=E4M3")])
def test_amx_has_the_few_rows_of_avx512(others):
    """Its types are among those of the other family's file, which is there without its kernels."""
    files = generated_files([*select("ship arch=AMX"), *others])
    source = files["kernels/flash_fwd_avx512.c"]
    types = ["FP16", "BF16", *(["E4M3"] if others else [])]
    assert re.findall(r"1u << FLASH_DTYPE_(\w+)", source) == types
    assert source.count("void flash_avx512_few_rows(") == 1
    assert source.count("_forward(&config, params, task, scratch);") == len(others)
    assert "kernels/flash_fwd_avx512.c" in files["kernels.cmake"]


def snapshot(directory):
    return {
        str(path.relative_to(directory)): (path.read_text(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_second_run_touches_nothing(tmp_path):
    files = generated_files(ship())
    first = update(tmp_path, files)
    assert first.added == sorted(set(map(stem, with_kernels(ship()))))
    before = snapshot(tmp_path)
    assert {path: text for path, (text, _) in before.items()} == files
    assert update(tmp_path, files) == ([], [])
    assert snapshot(tmp_path) == before


def test_a_damaged_file_is_mended_alone(tmp_path):
    files = generated_files(ship())
    update(tmp_path, files)
    before = snapshot(tmp_path)
    (tmp_path / "kernel_table.c").write_text("damaged")
    assert update(tmp_path, files) == ([], [])
    after = snapshot(tmp_path)
    assert after["kernel_table.c"][0] == files["kernel_table.c"]
    assert [path for path in after if after[path][1] != before[path][1]] == ["kernel_table.c"]


def test_another_selection_adds_and_removes_kernels(tmp_path):
    avx2, avx512 = select("ship arch=AVX2"), select("ship arch=AVX512")
    update(tmp_path, generated_files(avx2))
    notes = tmp_path / "kernels" / "notes.txt"
    notes.write_text("not ours")
    (tmp_path / "kernels" / "flash_other_operation_avx2.c").write_text("of an operation that left")
    changes = update(tmp_path, generated_files(avx512))
    assert changes.added == ["flash_bwd_avx512", "flash_fwd_avx512"]
    assert changes.removed == ["flash_bwd_avx2", "flash_fwd_avx2", "flash_other_operation_avx2"]
    assert {p.stem for p in (tmp_path / "kernels").glob("*.c")} == set(changes.added)
    assert notes.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    update(tmp_path, generated_files(ship()))
    before = snapshot(tmp_path)

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        update(tmp_path, generated_files(select("ship arch=REFERENCE")))
    assert snapshot(tmp_path) == before
