/*
 * These are the gradients of the NEON_BF16 family.
 */
#ifndef FLASH_KERNELS_CPU_NEON_BF16_BACKWARD_H
#define FLASH_KERNELS_CPU_NEON_BF16_BACKWARD_H

#include "cpu/neon_bf16.h"
#include "cpu/tiled_backward.h"

ALWAYS_INLINE void neon_bf16_backward_dq(const flash_config_t *config, const flash_params_t *params,
                                         const flash_gradients_t *gradients, const cpu_task_t *task,
                                         void *scratch) {
    tiled_backward_dq(config, params, gradients, task, scratch);
}

ALWAYS_INLINE void neon_bf16_backward_dkv(const flash_config_t *config,
                                          const flash_params_t *params,
                                          const flash_gradients_t *gradients,
                                          const cpu_task_t *task, void *scratch) {
    tiled_backward_dkv(config, params, gradients, task, scratch);
}

#endif
