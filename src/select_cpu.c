/*
 * CPU heuristic: the newest instruction set that the device has and that the table has a kernel
 * for. The table is sorted by family, oldest first.
 */
#include "select.h"

#include "config.h"
#include "kernel_table.h"

#include <stdio.h>

const flash_kernel_t *select_cpu(const problem_t *problem, const device_t *device,
                                 char reason[SELECT_REASON_SIZE]) {
    for (int32_t i = kernel_table_count; i-- > 0;) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (!config_is_cpu(&kernel->config) || !select_serves(kernel, problem, device))
            continue;
        snprintf(reason, SELECT_REASON_SIZE,
                 "%s is the newest family in this library that the processor has for %s%s",
                 config_arch_name(kernel->config.arch), config_dtype_name(problem->dtype),
                 device->amx_refused ? "; the system refused AMX's tile registers" : "");
        return kernel;
    }
    return NULL;
}
