/*
 * These are the gradients of the AVX2 family.
 */
#ifndef FLASH_KERNELS_CPU_AVX2_BACKWARD_H
#define FLASH_KERNELS_CPU_AVX2_BACKWARD_H

#include "cpu/avx2.h"
#include "cpu/tiled_backward.h"

ALWAYS_INLINE void avx2_backward_dq(const flash_config_t *config, const flash_params_t *params,
                                    const flash_gradients_t *gradients, const cpu_task_t *task,
                                    void *scratch) {
    tiled_backward_dq(config, params, gradients, task, scratch);
}

ALWAYS_INLINE void avx2_backward_dkv(const flash_config_t *config, const flash_params_t *params,
                                     const flash_gradients_t *gradients, const cpu_task_t *task,
                                     void *scratch) {
    tiled_backward_dkv(config, params, gradients, task, scratch);
}

#endif
