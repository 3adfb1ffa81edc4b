/*
 * AMX leaves tasks that read keys in place to the code of AVX-512, which its own file has compiled:
 * in a build with kernels of AMX that file defines this function, and has their types.
 */
#ifndef FLASH_KERNELS_CPU_AVX512_FEW_ROWS_H
#define FLASH_KERNELS_CPU_AVX512_FEW_ROWS_H

#include "cpu/cpu_kernel.h"

/* Computes a task of CPU_WAY_BLOCKS or CPU_WAY_STEPS, in scratch memory of config's family. */
void flash_avx512_few_rows(const flash_config_t *config, const flash_params_t *params,
                           const cpu_task_t *task, void *scratch);

#endif
