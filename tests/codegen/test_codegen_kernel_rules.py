"""Rules in the kernels' headers are read as a compiler of C reads them, and what is not read is
refused by name."""

import subprocess

import pytest
from c_compiler import COMPILERS, compile_c

from codegen.config import Config
from codegen.facts import Arch, Dtype, Feature
from codegen.kernel_rules import Headers, RuleError, rules_of

HEADER = """
enum {
    ROWS = 16, /* of a warp = 16 */
    BYTES = 2 * ROWS + 1
};

DUMMY_CONSTANT int32_t dummy_warps(const flash_config_t *c) {
    const int32_t of_rows = c->B_r / ROWS;
    return of_rows + 2 * flash_converts(c);
}

DUMMY_CONSTANT int32_t dummy_bytes(const flash_config_t *c, int32_t rows) {
    return rows * c->d_head * dtype_size(c->dtype);
}

DUMMY_CONSTANT int32_t dummy_loops(const flash_config_t *c) {
    for (;;) {
    }
}

#define DUMMY_FIELD_RULES(X, c, field) \\
    X((c)->field < 4, "%s is %d: %s", #field, (c)->field, (c)->op ? "so" : "not so")

#define DUMMY_FWD_RULES(X, c) \\
    X((c)->n_warps == dummy_warps(c), "n_warps is %d: %d " \\
      "with B_r %d", (c)->n_warps, dummy_warps(c), (c)->B_r) \\
    DUMMY_FIELD_RULES(X, c, n_stages) \\
    X(dummy_bytes(c, (c)->B_r) <= BYTES * 1024, "no more than %d", BYTES)

#define DUMMY_LOOP_RULES(X, c) X(dummy_loops(c), "never")
#define DUMMY_OTHER_RULES(X, c) X(other_header(c) > 1, "never")
#define DUMMY_CAST_RULES(X, c) X((c)->B_r[0], "never")
#define DUMMY_MESSAGE_RULES(X, c) X((c)->B_r, MESSAGE)
#define DUMMY_LIST_RULES(X, c) Y((c)->B_r, "never")
"""


@pytest.fixture(scope="module")
def headers():
    return Headers(HEADER)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Config(dtype=Dtype.FP16, B_r=64, n_warps=4, d_head=64), None),
        (Config(dtype=Dtype.E4M3, B_r=64, n_warps=6, d_head=64), None),
        (Config(dtype=Dtype.E4M3, B_r=64, n_warps=4), "n_warps is 4: 6 with B_r 64"),
        (Config(dtype=Dtype.FP16, B_r=64, n_warps=4, n_stages=4), "n_stages is 4: not so"),
        (Config(dtype=Dtype.FP16, B_r=64, n_warps=4, n_stages=4, op=1), "n_stages is 4: so"),
        (Config(dtype=Dtype.FP32, B_r=64, n_warps=4, d_head=256), "no more than 33"),
    ],
)
def test_lists_are_read(headers, config, expected):
    found = (rule(config) for rule in headers.rules("DUMMY_FWD_RULES"))
    assert next(filter(None, found), None) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NO_RULES", "no header of the kernels defines NO_RULES"),
        ("DUMMY_LOOP_RULES", "DUMMY_LOOP_RULES uses dummy_loops"),
        ("DUMMY_OTHER_RULES", "DUMMY_OTHER_RULES uses other_header, which is not read"),
        ("DUMMY_CAST_RULES", "'\\[' is not expected"),
        ("DUMMY_MESSAGE_RULES", "DUMMY_MESSAGE_RULES has a rule without a message"),
        ("DUMMY_LIST_RULES", "uses Y, which is no list of rules"),
    ],
)
def test_what_is_not_read_is_refused(headers, name, message):
    with pytest.raises(RuleError, match=message):
        headers.rules(name)


EXPRESSIONS = [
    "1 + 2 * 3 - 4 % 3",
    "(1 + 2) * 3",
    "-7 / 2",
    "-7 % 2",
    "7 / -2",
    "100 / 8 / 2",
    "10 - 3 - 2",
    "1 << 3 + 1",
    "6 & 3 == 3",
    "(6 & 3) == 2",
    "1 | 6 ^ 2 & 3",
    "1 < 2 == 1",
    "!3 + 1",
    "!0 && 2 || 0",
    "3 && 4",
    "0 || 5",
    "1 ? 2 : 0 ? 3 : 4",
    "0 ? 2 : 0 ? 3 : 4",
    "(int32_t)sizeof(float) * 3",
    "(c->features & FLASH_FEATURE_BIAS) != 0",
    "c->features & FLASH_FEATURE_BIAS && c->B_r >= 64",
    "c->B_r * (c->arch == FLASH_ARCH_SM90 ? 2 : 1)",
]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_expressions_have_the_values_that_they_have_in_c(compiler, root, tmp_path):
    """Both compute them for one configuration."""
    config = Config(arch=Arch.SM90, B_r=64, features=Feature.BIAS)
    texts = "\n".join(
        f'#define A{i}_RULES(X, c) X(0, "%d", {text})' for i, text in enumerate(EXPRESSIONS)
    )
    ours = [Headers(texts).rules(f"A{i}_RULES")[0](config) for i in range(len(EXPRESSIONS))]
    lines = "\n".join(f'    printf("%d\\n", (int)({text}));' for text in EXPRESSIONS)
    program = f"""
#include "flashattn.h"
#include <stdio.h>
int main(void) {{
    const flash_config_t config = {{.arch = FLASH_ARCH_SM90, .B_r = 64, .features = 32}};
    const flash_config_t *c = &config;
{lines}
    return 0;
}}
"""
    source, binary = tmp_path / "program.c", tmp_path / "program"
    source.write_text(program)
    result = compile_c(compiler, root, [source], "-w", "-o", binary)
    assert result.returncode == 0, result.stderr
    printed = subprocess.run([binary], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ours


def test_rows_without_a_list_are_refused():
    with pytest.raises(RuleError, match="no header of the kernels defines SM70_FWD_RULES"):
        rules_of("sm70_fwd")
