"""A new operation enters through the steps of docs/adding-a-kernel.md: a toy operation of the
reference family, COUNT, which fills O with the number of keys, in a copy of the sources.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDERS = ("bindings/python/extension", "cmake", "codegen", "include", "kernels", "src")

# The steps: for each file what stands there, and what then does.
CHANGES = {
    "include/flashattn.h": (
        ("FLASH_OP_FORWARD = 0 ", "FLASH_OP_COUNT = 1,\n    FLASH_OP_FORWARD = 0 "),
        (
            "FLASH_API flash_status_t flash_combine(",
            "FLASH_API flash_status_t flash_count(const flash_forward_args_t *args,\n"
            "                                     const flash_kernel_t *kernel);\n"
            "FLASH_API flash_status_t flash_combine(",
        ),
    ),
    "src/flashattn.map": (("flash_combine;", "flash_combine;\n        flash_count;"),),
    "codegen/facts.py": (
        ("    FORWARD = 0\n", "    FORWARD = 0\n    COUNT = 1\n"),
        ('{"FORWARD": "fwd"}', '{"FORWARD": "fwd", "COUNT": "count"}'),
        (
            "MIXED = Layout(",
            'COUNT = Layout("count", shape=("B_r",), any_d_head=True)\nMIXED = Layout(',
        ),
        (
            "    return Family(arch, True, {Op.FORWARD: forward}, flags)\n",
            '    rules = {"d_head": Range(0, INT32_MAX), "B_r": Choice((1, 2))}\n'
            "    count = Rows(COUNT, _wide_o(Dtype.FP32), rules, int(Feature.CAUSAL))\n"
            "    counts = {Op.COUNT: count} if arch == Arch.REFERENCE else {}\n"
            "    return Family(arch, True, {Op.FORWARD: forward, **counts}, flags)\n",
        ),
    ),
    "codegen/wrappers.py": (
        (
            "WRAPPERS = {\n",
            "WRAPPERS = {\n"
            '    ("count", Op.COUNT): Wrapper(\n'
            '        suffix=".c",\n'
            '        header="common/params.h",\n'
            '        parameters="const flash_params_t *params",\n'
            "        source=_alone(\n"
            "            lambda config: '#include \"cpu/reference_count.h\"\\n'\n"
            "            f'{prototype(config)};\\n'\n"
            "            f'{prototype(config)} {{\\n    reference_count(params);\\n}}\\n'\n"
            "        ),\n"
            "    ),\n",
        ),
    ),
    "codegen/sets.py": (
        (
            "        + ship_sm80()\n",
            "        + [Config(arch=Arch.REFERENCE, op=Op.COUNT, dtype=3, B_r=1)]\n"
            "        + ship_sm80()\n",
        ),
    ),
    "src/cpu/family.c": (
        (
            "#define CPU_FAMILY(",
            "extern const family_calls_t cpu_count_calls;\n"
            "static const family_op_t count = {.rank = rank_by_tile, .calls = &cpu_count_calls};\n"
            "#define CPU_FAMILY(",
        ),
        (
            "remark_on_processor, [FLASH_OP_FORWARD] = &forward);\n\n/* ---- x86",
            "remark_on_processor, [FLASH_OP_FORWARD] = &forward,\n"
            "           [FLASH_OP_COUNT] = &count);\n\n/* ---- x86",
        ),
    ),
    "CMakeLists.txt": (
        ("    src/cpu/launch.c\n", "    src/cpu/launch.c\n    src/cpu/launch_count.c\n"),
    ),
    "src/api/forward.c": (
        (
            "flash_status_t flash_combine(",
            "flash_status_t flash_count(const flash_forward_args_t *args,\n"
            "                           const flash_kernel_t *kernel) {\n"
            "    FLASH_CALL_SCOPE();\n"
            "    resolved_t r = {0};\n"
            "    FLASH_TRY(resolve(args, FLASH_OP_COUNT, kernel, &r));\n"
            "    return kernel_calls(r.kernel)->launch(r.kernel, &r.problem, &r.device, NULL);\n"
            "}\n\n"
            "flash_status_t flash_combine(",
        ),
    ),
}
ADDED = {
    "kernels/cpu/reference_count.h": """\
#include "common/params.h"
static inline void reference_count(const flash_params_t *p) {
    for (int64_t i = 0; i < (int64_t)p->seqlen_q * p->d_head_v; i++)
        ((float *)p->o)[i] = (float)p->seqlen_k;
}
""",
    "src/cpu/launch_count.c": """\
#include "config/kernel_table.h"
extern const family_calls_t cpu_count_calls;
static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    (void)device, (void)stream;
    ((void (*)(const flash_params_t *))kernel->function)(&problem->params);
    return FLASH_SUCCESS;
}
const family_calls_t cpu_count_calls = {.launch = launch};
""",
}

# The program asks the library for its rows of both operations, and calls it with and without a row.
PROGRAM = """\
import ctypes, sys
import flashattn
from flashattn import _abi
from flashattn._library import library
c = library()
c.flash_count.restype = ctypes.c_int32
text = "REFERENCE count (FP32, any, 1)"
config = flashattn.Config.parse(text)
assert config.op == 1 and str(config) == text, config
refused = {
    "REFERENCE (FP32, any, 1)": "expected ','",
    "REFERENCE count (FP32, any, 1, 1)": "expected ')'",
    "AVX2 count (FP32, any, 1)": "expected an operation of the family at position 5",
    "REFERENCE count (BF16, any, 1)": "dtype is 2: the family has no such value",
    "REFERENCE count (FP32, any, 4)": "B_r is 4: the family has no such value",
    "REFERENCE count (FP32, any, 1): window": "features is 0x2: the REFERENCE family does not have",
    "REFERENCE count (FP32, any, 2)": "is a legal configuration without a kernel",
}
for form, reason in refused.items():
    try:
        flashattn.config.row(flashattn.Config.parse(form))
    except (ValueError, LookupError) as error:
        assert reason in str(error), error
    else:
        raise AssertionError(form)
rows = {k.config.op: k for k in flashattn.kernels() if k.config.dtype == 3}
assert rows[1].config == config
assert rows[1].name == "flash_count_reference_fp32_dany_1", rows
data = [(ctypes.c_float * 8)(*range(8)) for _ in range(4)]
strides = dict(stride_batch=8, stride_seq=4, stride_head=4)
tensors = [_abi.flash_tensor_t(data=ctypes.addressof(x), **strides)
           for x in data]
args = _abi.flash_forward_args_t(dtype=3, batch=1, seqlen_q=2, seqlen_k=2, n_heads=1, n_heads_kv=1,
                                 d_head=4, q=tensors[0], k=tensors[1], v=tensors[2], o=tensors[3])
def count(kernel):
    data[3][:] = [-1] * 8
    return c.flash_count(ctypes.byref(args), ctypes.c_void_p(kernel)), list(data[3])
row = {op: flashattn.config.row(k.config) for op, k in rows.items()}
assert count(None) == (0, [2.0] * 8)
assert count(row[1]) == (0, [2.0] * 8)
status, o = count(row[0])
assert status == 200 and o == [-1] * 8, status
assert "does not serve this problem: op" in c.flash_last_error().decode()
assert c.flash_query_support(ctypes.byref(args), ctypes.c_void_p(row[1]), None, 0) == 200
print("counted")
"""


def walk(root: Path, copy: Path) -> None:
    """Copies the sources and takes the steps."""
    shutil.copy(root / "CMakeLists.txt", copy)
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name)
    for path, changes in CHANGES.items():
        text = (copy / path).read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        (copy / path).write_text(text)
    for path, text in ADDED.items():
        (copy / path).write_text(text)


def build(copy: Path) -> Path:
    """Builds the copy with the kernels of the reference family alone, and returns the library."""
    out = copy / "build"
    options = ["-DFLASH_CUDA=OFF", "-DFLASH_KERNELS=ship arch=REFERENCE", "-DFLASH_STATIC=OFF"]
    options += ["-DFLASH_INSTALL=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-O0 -g0"]
    for command in (["-S", copy, "-B", out, *options], ["--build", out, "--target", "flashattn"]):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out / "libflashattn.so"


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_an_operation_enters_by_the_documented_steps(root, tmp_path):
    walk(root, tmp_path)
    environment = {**os.environ, "FLASHATTN_LIBRARY": str(build(tmp_path))}
    environment["PYTHONPATH"] = str(root / "bindings" / "python")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "counted\n"), done.stderr


def test_the_page_names_each_file_of_the_steps(root):
    page = (root / "docs" / "adding-a-kernel.md").read_text()
    section = page.partition("\n## An operation\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w/]+\.\w+)`", section))
    changed = {path for path in CHANGES if path != "include/flashattn.h"}
    assert changed <= named
