"""The text of every generated file, from a sorted list of configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .config import Config, kernel_name
from .emit_facts import GENERATED, continued, facts_header, facts_source
from .emit_groups import kernel_groups
from .facts import FAMILIES, FIELDS, Arch, Dtype, Feature, Op, rows_name, rows_of
from .machine_code import Code, code_of
from .short_form import format_config
from .tuning import Key, Result, committed_results, results_of
from .wrappers import (
    File,
    dq_of_ds_name,
    files_of,
    indented_initialiser,
    keeps_ds,
    prototypes,
    wrapper_of,
)

FIELD_SIZE = 4  # struct_size and every field: 32 bits, without padding


def path_of(file: File) -> str:
    """Returns the path of a file of kernels, below the output directory."""
    return f"kernels/{file.name}"


ASSERT_VALUE = (
    "#define ASSERT_VALUE(name, value)",
    '    _Static_assert(name == (value), #name " is not the one of codegen/facts.py")',
)
ASSERT_FIELD = (
    "#define ASSERT_FIELD(name, offset)",
    "    _Static_assert(offsetof(flash_config_t, name) == (offset) &&",
    f"                       sizeof(((flash_config_t *)0)->name) == {FIELD_SIZE},",
    '                   #name " is not where codegen/facts.py has it")',
)


def _assertions() -> str:
    """Asserts the values of enumerators and the order of fields, which the order of rows needs."""
    groups = (("ARCH", Arch), ("OP", Op), ("DTYPE", Dtype), ("FEATURE", Feature))
    values = [
        f"ASSERT_VALUE(FLASH_{group}_{member.name}, {int(member)});\n"
        for group, enumeration in groups
        for member in enumeration
    ]
    offsets = [
        f"ASSERT_FIELD({field}, {FIELD_SIZE * position});\n"
        for position, field in enumerate(("struct_size", *FIELDS))
    ]
    return f"""\
{continued(ASSERT_VALUE)}{"".join(values)}
{continued(ASSERT_FIELD)}{"".join(offsets)}
_Static_assert(sizeof(flash_config_t) == {FIELD_SIZE * (len(FIELDS) + 1)},
               "flash_config_t has a field that codegen/facts.py has not");
"""


def with_kernels(configs: Iterable[Config]) -> list[Config]:
    """Returns the configurations that have kernels of their own."""
    return [c for c in configs if rows_of(c.arch, c.op).layout.has_kernels]


def _row(config: Config, has_kernel: bool) -> str:
    name = kernel_name(config)
    family = FAMILIES[Arch(config.arch)]
    function = f"(void (*)(void)){name}" if has_kernel else "NULL"
    has_second = has_kernel and keeps_ds(config)
    second = f"(void (*)(void)){dq_of_ds_name(config)}" if has_second else "NULL"
    name_of_rows = rows_name(family, Op(config.op))
    types = rows_of(config.arch, config.op).row_types.index((config.dtype, config.operand_dtype))
    return f"""\
    /* {format_config(config)} */
    {{{indented_initialiser(config, "    ")},
     "{name}",
     {function},
     {second},
     &family_{family.name},
     &row_facts_{name_of_rows},
     &row_types_{name_of_rows}[{types}]}},
"""


def kernel_table(configs: Sequence[Config], kernels: Sequence[Config]) -> str:
    """Returns kernel_table.c: one row per configuration, strictly ascending. Those of `kernels`
    point to their kernels."""
    headers = sorted({wrapper_of(config).header for config in kernels})
    includes = "".join(f'#include "{header}"\n' for header in headers)
    declarations = "".join(f"{x};\n" for config in kernels for x in prototypes(config))
    has_kernel = set(kernels)
    rows = "".join(_row(config, config in has_kernel) for config in configs)
    return f"""\
/*
 * The kernels of this library, in ascending order of their configurations.
 * {GENERATED}
 */
#include "config/kernel_table.h"

{includes}#include "flashattn.h"

#include <stddef.h>
#include <stdint.h>

{_assertions()}
{declarations}
const struct flash_kernel kernel_table[] = {{
{rows}}};

const int32_t kernel_table_count = (int32_t)(sizeof kernel_table / sizeof kernel_table[0]);

{kernel_groups(configs)}"""


def _tuning_row(result: Result, index: int) -> str:
    key = ", ".join(map(str, result.key))
    return f"""\
    /* {format_config(result.config)} */
    {{{{{{{key}}}}}, {result.nanoseconds}, &kernel_table[{index}]}},
"""


def tuning_table(configs: Sequence[Config], results: Iterable[Result]) -> str:
    """Returns tuning_table.c: the results of these configurations, the rows of kernel_table.c."""
    index = {config: position for position, config in enumerate(configs)}
    ascending = sorted(results_of(configs, results))
    rows = "".join(_tuning_row(result, index[result.config]) for result in ascending)
    # An array needs an element, even if none counts.
    table = f"tuning_table[] = {{\n{rows}}}" if rows else "tuning_table[1]"
    return f"""\
/*
 * Measured results of this library's kernels, in ascending order of what they were measured on.
 * {GENERATED}
 */
#include "select/tuning/results.h"

#include "config/kernel_table.h"

#include <stdint.h>

_Static_assert(TUNING_N_FIELDS == {len(Key._fields)},
               "tuning_key_t has not the fields of codegen/tuning.py");

const tuning_row_t {table};

const int32_t tuning_table_count = {len(ascending)};
"""


def _sources(name: str, files: Iterable[File]) -> str:
    """Returns the line of kernels.cmake that sets FLASH_KERNEL_SOURCES_<name>."""
    paths = [f'    "${{CMAKE_CURRENT_LIST_DIR}}/{path_of(file)}"\n' for file in files]
    return f"set(FLASH_KERNEL_SOURCES_{name}{chr(10) if paths else ''}{''.join(paths)})\n"


def _code_of(file: File) -> Code:
    """Returns the kind of machine code of a file's kernels, which have one in common."""
    return code_of(file.kernels[0]) if file.kernels else Code.OF_FAMILY


def kernels_cmake(kernels: Sequence[Config]) -> str:
    """Returns kernels.cmake: each family's translation units and compiler flags, in a list for each
    kind of machine code that its kernels have."""
    lines = [f"# {GENERATED}\n"]
    for arch, family in FAMILIES.items():
        files = [file for file in files_of(kernels) if file.arch == arch]
        for code in Code:
            of_code = [file for file in files if _code_of(file) == code]
            if of_code or code == Code.OF_FAMILY:
                lines.append(_sources(arch.name + code.value, of_code))
        flags = "".join(f" {flag}" for flag in family.flags)
        lines.append(f"set(FLASH_KERNEL_FLAGS_{arch.name}{flags})\n")
    return "".join(lines)


def generated_files(
    configs: Iterable[Config], compiled: Iterable[Config] | None = None
) -> dict[str, str]:
    """Returns the text of every generated file, by its path below the output directory.

    compiled    the rows that have kernels; None: all of families that have any
    """
    ascending = sorted(set(configs))
    kernels = with_kernels(ascending if compiled is None else sorted(set(compiled)))
    files = {
        "config_facts.h": facts_header(),
        "config_facts.c": facts_source(),
        "kernel_table.c": kernel_table(ascending, kernels),
        "kernels.cmake": kernels_cmake(kernels),
        "tuning_table.c": tuning_table(ascending, committed_results()),
    }
    files.update({path_of(file): file.text for file in files_of(kernels)})
    return files
