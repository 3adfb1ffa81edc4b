/*
 * These are the gradients of the AMX family, of bf16: products on tile registers, all else as in
 * the AVX512_BF16 family.
 */
#ifndef FLASH_KERNELS_CPU_AMX_BACKWARD_H
#define FLASH_KERNELS_CPU_AMX_BACKWARD_H

#define GRADIENTS_ON_TILES 1

#include "cpu/avx512_bf16.h"
#include "cpu/tiled_backward.h"

ALWAYS_INLINE void amx_backward_dq(const flash_config_t *config, const flash_params_t *params,
                                   const flash_gradients_t *gradients, const cpu_task_t *task,
                                   void *scratch) {
    tiled_backward_dq(config, params, gradients, task, scratch);
}

ALWAYS_INLINE void amx_backward_dkv(const flash_config_t *config, const flash_params_t *params,
                                    const flash_gradients_t *gradients, const cpu_task_t *task,
                                    void *scratch) {
    tiled_backward_dkv(config, params, gradients, task, scratch);
}

#endif
