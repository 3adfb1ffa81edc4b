/*
 * This is the AVX-512 family (F, BW, DQ, VL).
 */
#ifndef FLASH_KERNELS_CPU_AVX512_H
#define FLASH_KERNELS_CPU_AVX512_H

#include "cpu/avx512_vectors.h"
#include "cpu/tuning.h"

#define VEC_DOTS_BF16             0
#define VEC_STEP_BYTES            AVX512_STEP_BYTES
#define VEC_SINGLE_ROW_STEP_BYTES AVX512_SINGLE_ROW_STEP_BYTES

#include "cpu/tiled.h"

ALWAYS_INLINE void avx512_forward(const flash_config_t *config, const flash_params_t *params,
                                  const cpu_task_t *task, void *scratch) {
    tiled_forward(config, params, task, scratch);
}

#endif
