/*
 * The AVX-512 family (F, BW, DQ, VL).
 */
#ifndef FLASH_KERNELS_CPU_AVX512_H
#define FLASH_KERNELS_CPU_AVX512_H

#include "cpu/avx512_vectors.h"

#define VEC_DOTS_BF16      0
#define VEC_STEP_BYTES     8192
#define VEC_ROW_STEP_BYTES 32768

#include "cpu/tiled.h"

ALWAYS_INLINE void avx512_forward(const flash_config_t *config, const flash_params_t *params,
                                  const cpu_task_t *task, void *scratch) {
    tiled_forward(config, params, task, scratch);
}

#endif
