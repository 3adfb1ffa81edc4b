/*
 * CPU heuristic: the newest instruction set that the device has, that pays, and that the table has
 * a kernel for.
 */
#include "select.h"

#include "config.h"
#include "kernel_table.h"

#include <stdio.h>

static const int32_t newest_first[] = {FLASH_ARCH_NEON_BF16,   FLASH_ARCH_NEON,   FLASH_ARCH_AMX,
                                       FLASH_ARCH_AVX512_BF16, FLASH_ARCH_AVX512, FLASH_ARCH_AVX2,
                                       FLASH_ARCH_REFERENCE};

/* The last row of a family that serves; NULL: none does. */
static const flash_kernel_t *serving(int32_t arch, const problem_t *problem,
                                     const device_t *device) {
    for (int32_t i = kernel_table_count; i-- > 0;) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (kernel->config.arch == arch && select_serves(kernel, problem, device))
            return kernel;
    }
    return NULL;
}

const flash_kernel_t *select_cpu(const problem_t *problem, const device_t *device,
                                 char reason[SELECT_REASON_SIZE]) {
    bool passed_over = false;
    for (size_t i = 0; i < sizeof newest_first / sizeof newest_first[0]; i++) {
        const int32_t arch = newest_first[i];
        const flash_kernel_t *kernel = serving(arch, problem, device);
        if (kernel == NULL)
            continue;
        if (arch == FLASH_ARCH_AVX512_BF16 && !device->dots_pay) {
            passed_over = true;
            continue;
        }
        snprintf(reason, SELECT_REASON_SIZE,
                 "%s is the newest family in this library that the processor has for %s%s%s",
                 config_arch_name(arch), config_dtype_name(problem->dtype),
                 device->amx_refused ? "; the system refused AMX's tile registers" : "",
                 passed_over ? "; AVX512_BF16's products are slow on it" : "");
        return kernel;
    }
    return NULL;
}
