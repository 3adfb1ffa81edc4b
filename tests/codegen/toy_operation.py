"""The steps of docs/adding-a-kernel.md for a toy operation, COUNT: a call computes LSE by a row of
the forward pass, and fills O with the number of keys by a row of COUNT.

Every CPU family computes it, and the reference family has a row.
"""

# For each file what stands there, and what then does.
CHANGES = {
    "include/flashattn.h": (
        ("FLASH_OP_FORWARD = 0,", "FLASH_OP_COUNT = 3,\n    FLASH_OP_FORWARD = 0,"),
        (
            "FLASH_API flash_status_t flash_combine(",
            "FLASH_API flash_status_t flash_count(const flash_forward_args_t *args,\n"
            "                                     const flash_kernel_t *kernel);\n"
            "FLASH_API flash_status_t flash_count_workspace_size(\n"
            "    const flash_forward_args_t *args, const flash_kernel_t *kernel, uint64_t *size);\n"
            "FLASH_API flash_status_t flash_combine(",
        ),
    ),
    "src/flashattn.map": (
        (
            "flash_combine;",
            "flash_combine;\n        flash_count;\n        flash_count_workspace_size;",
        ),
    ),
    "codegen/facts.py": (
        ("    BACKWARD_DKV = 2\n", "    BACKWARD_DKV = 2\n    COUNT = 3\n"),
        ('{"FORWARD": "fwd", ', '{"COUNT": "count", "FORWARD": "fwd", '),
        (
            "MIXED = Layout(",
            'COUNT = Layout("count", shape=("B_r",), any_d_head=True)\nMIXED = Layout(',
        ),
        (
            "    return Family(arch, True, operations, flags)\n",
            '    rules = {"d_head": Range(0, INT32_MAX), "B_r": Choice((1, 2))}\n'
            "    count = Rows(COUNT, _wide_o(Dtype.FP32), rules, int(Feature.CAUSAL))\n"
            "    return Family(arch, True, operations | {Op.COUNT: count}, flags)\n",
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
            "            lambda config: '#include \"cpu/key_count.h\"\\n'\n"
            "            f'{prototype(config)};\\n'\n"
            "            f'{prototype(config)} {{\\n    count_keys(params);\\n}}\\n'\n"
            "        ),\n"
            "    ),\n",
        ),
    ),
    "codegen/sets.py": (
        (
            "        + ship_sm80()\n",
            "        + [Config(arch=Arch.REFERENCE, op=Op.COUNT, dtype=Dtype.FP32, B_r=1)]\n"
            "        + ship_sm80()\n",
        ),
    ),
    "src/cpu/family.c": (
        (
            '#include "cpu/forward.h"\n',
            '#include "cpu/forward.h"\n#include "cpu/count_keys.h"\n',
        ),
        (
            "#define CPU_FAMILY(",
            "static const family_op_t count = {\n"
            "    .rank = rank_by_tile, .calls = &cpu_calls, .cpu = &cpu_count_keys};\n"
            "#define CPU_FAMILY(",
        ),
        (".ops = {__VA_ARGS__}", ".ops = {__VA_ARGS__, [FLASH_OP_COUNT] = &count}"),
    ),
    "CMakeLists.txt": (
        ("    src/api/device.c\n", "    src/api/count.c\n    src/api/device.c\n"),
        ("    src/cpu/count.c\n", "    src/cpu/count.c\n    src/cpu/count_keys.c\n"),
    ),
}

ADDED = {
    "kernels/cpu/key_count.h": """\
#include "common/params.h"
static inline void count_keys(const flash_params_t *p) {
    for (int64_t i = 0; i < (int64_t)p->seqlen_q * p->d_head_v; i++)
        ((float *)p->o)[i] = (float)p->seqlen_k;
}
""",
    "src/cpu/count_keys.h": """\
#ifndef FLASH_CPU_COUNT_KEYS_H
#define FLASH_CPU_COUNT_KEYS_H
#include "cpu/operation.h"
extern const cpu_operation_t cpu_count_keys;
#endif
""",
    "src/cpu/count_keys.c": """\
#include "cpu/count_keys.h"

#include "config/kernel_table.h"
#include "core/status.h"

static flash_status_t plan(const flash_kernel_t *kernel, const problem_t *problem,
                           int32_t n_threads, cpu_needs_t *needs) {
    (void)kernel, (void)problem, (void)n_threads;
    *needs = (cpu_needs_t){.workspace = 1 << 20, .least_workspace = 1 << 20, .n_workers = 1};
    return FLASH_SUCCESS;
}

static flash_status_t run(const flash_kernel_t *kernel, const problem_t *problem,
                          parallel_t *parallel) {
    cpu_needs_t needs;
    FLASH_TRY(plan(kernel, problem, parallel->n_workers, &needs));
    FLASH_TRY(cpu_check_workspace(problem, &needs));
    ((void (*)(const flash_params_t *))kernel->function)(&problem->params);
    return FLASH_SUCCESS;
}

const cpu_operation_t cpu_count_keys = {.plan = plan, .run = run};
""",
    "src/api/count.c": """\
#include "api/resolve.h"
#include "arguments/data.h"
#include "config/kernel_table.h"
#include "core/call_scope.h"
#include "core/status.h"

typedef struct rows {
    resolved_t forward, count;
} rows_t;

static flash_status_t resolve_rows(const flash_forward_args_t *args, const flash_kernel_t *kernel,
                                   rows_t *rows) {
    FLASH_TRY(resolve(args, FLASH_OP_FORWARD, NULL, &rows->forward));
    rows->count = rows->forward;
    return resolve_kernel(FLASH_OP_COUNT, kernel, &rows->count);
}

static flash_status_t launch(resolved_t *r) {
    FLASH_TRY(arguments_check_data(&r->args, device_is_cpu(&r->device), &r->problem));
    return kernel_calls(r->kernel)->launch(r->kernel, &r->problem, &r->device, NULL);
}

static flash_status_t workspace(const resolved_t *r, uint64_t *size) {
    uint64_t needed;
    FLASH_TRY(kernel_calls(r->kernel)->workspace(r->kernel, &r->problem, &r->device, &needed));
    *size = needed > *size ? needed : *size;
    return FLASH_SUCCESS;
}

flash_status_t flash_count(const flash_forward_args_t *args, const flash_kernel_t *kernel) {
    FLASH_CALL_SCOPE();
    rows_t rows = {0};
    FLASH_TRY(resolve_rows(args, kernel, &rows));
    FLASH_TRY(launch(&rows.forward));
    return launch(&rows.count);
}

flash_status_t flash_count_workspace_size(const flash_forward_args_t *args,
                                          const flash_kernel_t *kernel, uint64_t *size) {
    FLASH_CALL_SCOPE();
    rows_t rows = {0};
    *size = 0;
    FLASH_TRY(resolve_rows(args, kernel, &rows));
    FLASH_TRY(workspace(&rows.forward, size));
    return workspace(&rows.count, size);
}
""",
}
