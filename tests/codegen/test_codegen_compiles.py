"""The emitted C compiles without a warning, has what was selected, and rejects a header that the
generator does not know. Stand-ins for the families' code tell what called them.
"""

import subprocess
from dataclasses import astuple

import pytest
from c_compiler import COMPILERS, compile_c

from codegen.config import kernel_name
from codegen.emit import generated_files
from codegen.facts import FAMILIES
from codegen.output import update
from codegen.sets import ship_cpu

STAND_IN = """\
#ifndef STAND_IN_{family}
#define STAND_IN_{family}
#include "cpu/cpu_kernel.h"
#include "flashattn.h"
extern const char *called_family;
extern const flash_config_t *called_config;
static inline void {family}_forward(const flash_config_t *config, const flash_params_t *params,
                                    const cpu_task_t *task, void *scratch) {{
    (void)params;
    (void)task;
    (void)scratch;
    called_family = "{family}";
    called_config = config;
}}
#define tiled_forward {family}_forward /* what a file computes for another family */
#endif
"""

# One line per row: the family's code that its function calls, its name, and each field of its
# configuration. The constant that the function specialises must be that of the row.
WALK = """\
#include "config_facts.h"
#include "cpu/cpu_kernel.h"
#include "config/kernel_table.h"
#include <stdio.h>
#include <string.h>
extern const char *called_family;
extern const flash_config_t *called_config;
const char *called_family;
const flash_config_t *called_config;
#define STAND_IN(NAME, name) const family_t family_##name = {0};
FLASH_CONFIG_ARCHS(STAND_IN)
int main(void) {
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const struct flash_kernel *row = &kernel_table[i];
        ((cpu_kernel_t)row->function)(NULL, NULL, NULL);
        if (memcmp(called_config, &row->config, sizeof row->config) != 0)
            return 1;
        printf("%s %s", called_family, row->name);
#define PRINT_FIELD(field) printf(" %d", row->config.field);
        FLASH_CONFIG_FIELDS(PRINT_FIELD)
        printf("\\n");
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Returns the sources of the ship set's CPU kernels, with a stand-in for each family."""
    directory = tmp_path_factory.mktemp("generated")
    update(directory, generated_files(ship_cpu()))
    (directory / "cpu").mkdir()
    for family in FAMILIES.values():
        if family.on_cpu:
            header = directory / "cpu" / f"{family.name}.h"
            header.write_text(STAND_IN.format(family=family.name))
    (directory / "walk.c").write_text(WALK)
    return directory


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_table_holds_the_cpu_kernels(compiler, root, generated, tmp_path):
    program = tmp_path / "walk"
    sources = [
        generated / "walk.c",
        generated / "kernel_table.c",
        generated / "config_facts.c",
        *(generated / "kernels").glob("*.c"),
    ]
    compiled = compile_c(compiler, root, sources, "-o", program, include=[generated])
    assert (compiled.returncode, compiled.stderr) == (0, "")
    walk = subprocess.run([program], capture_output=True, text=True, check=True)
    assert walk.stdout.splitlines() == [
        " ".join([FAMILIES[c.arch].name, kernel_name(c), *(str(int(v)) for v in astuple(c))])
        for c in sorted(ship_cpu())
    ]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("FLASH_DTYPE_BF16 = 2", "FLASH_DTYPE_BF16 = 4", "FLASH_DTYPE_BF16"),
        ("FLASH_ARCH_SM80 = 80", "FLASH_ARCH_SM80 = 8", "FLASH_ARCH_SM80"),
        ("FLASH_FEATURE_VARLEN = 8", "FLASH_FEATURE_VARLEN = 16", "FLASH_FEATURE_VARLEN"),
        ("int32_t n_warps;", "int32_t n_warps[2];", "n_warps"),
        ("int32_t n_warps;", "int32_t n_more; int32_t n_warps;", "n_warps"),
        ("} flash_config_t;", "int32_t n_more; } flash_config_t;", "flash_config_t has a field"),
    ],
)
def test_a_header_of_another_mind_is_noticed(compiler, root, generated, tmp_path, old, new, told):
    header = (root / "include/flashattn.h").read_text()
    assert header.count(old) == 1
    (tmp_path / "flashattn.h").write_text(header.replace(old, new))
    table = generated / "kernel_table.c"
    compiled = compile_c(compiler, root, [table], "-fsyntax-only", include=[tmp_path, generated])
    assert compiled.returncode != 0
    assertions = [line for line in compiled.stderr.splitlines() if "error: static" in line]
    assert any(told in line and "codegen/" in line for line in assertions)
