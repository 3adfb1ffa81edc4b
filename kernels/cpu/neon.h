/*
 * This is the NEON family (Advanced SIMD of AArch64).
 */
#ifndef FLASH_KERNELS_CPU_NEON_H
#define FLASH_KERNELS_CPU_NEON_H

#include "cpu/neon_vectors.h"
#include "cpu/tuning.h"

#define VEC_DOTS_BF16             0
#define VEC_STEP_BYTES            NEON_STEP_BYTES
#define VEC_SINGLE_ROW_STEP_BYTES 0

#include "cpu/tiled.h"

ALWAYS_INLINE void neon_forward(const flash_config_t *config, const flash_params_t *params,
                                const cpu_task_t *task, void *scratch) {
    tiled_forward(config, params, task, scratch);
}

#endif
