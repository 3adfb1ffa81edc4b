/*
 * CPU heuristic: the fastest instruction set that the device has and that the table has a kernel
 * for.
 */
#include "select/select.h"

#include "config/config.h"
#include "config/kernel_table.h"

#include <stdio.h>

enum { N_FAMILIES = 7 };

/* Fastest first, by whether products of bf16 pairs pay. */
static const int32_t families[2][N_FAMILIES] = {
    {FLASH_ARCH_NEON_BF16, FLASH_ARCH_NEON, FLASH_ARCH_AMX, FLASH_ARCH_AVX512,
     FLASH_ARCH_AVX512_BF16, FLASH_ARCH_AVX2, FLASH_ARCH_REFERENCE},
    {FLASH_ARCH_NEON_BF16, FLASH_ARCH_NEON, FLASH_ARCH_AMX, FLASH_ARCH_AVX512_BF16,
     FLASH_ARCH_AVX512, FLASH_ARCH_AVX2, FLASH_ARCH_REFERENCE}};

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

/* What kept a family that the processor has from being chosen in this one's place. */
static const char *obstacle(const device_t *device, int32_t arch, int32_t dtype) {
    const bool slow_dots = (device->isa & FLASH_ISA_AVX512_BF16) && !device->dots_pay;
    if (device->amx_refused)
        return "; the system refused AMX's tile registers";
    return slow_dots && arch == FLASH_ARCH_AVX512 && dtype == FLASH_DTYPE_BF16
               ? "; products of bf16 pairs are slow on it"
               : "";
}

const flash_kernel_t *select_cpu(const problem_t *problem, const device_t *device,
                                 char reason[SELECT_REASON_SIZE]) {
    for (int i = 0; i < N_FAMILIES; i++) {
        const int32_t arch = families[device->dots_pay][i];
        const flash_kernel_t *kernel = serving(arch, problem, device);
        if (kernel == NULL)
            continue;
        snprintf(reason, SELECT_REASON_SIZE,
                 "%s is the fastest family in this library that the processor has for %s%s",
                 config_arch_name(arch), config_dtype_name(problem->dtype),
                 obstacle(device, arch, problem->dtype));
        return kernel;
    }
    return NULL;
}
