/*
 * This file plans the kernel that transposes V ahead of an SM90 kernel (transpose_v_sm90.h).
 */
#include "cuda/sm90/transpose_v_sm90.h"

#include "kernels/common/operand.h"
#include "kernels/sm90/transpose_v_kernel.h"

#include <stdint.h>

uint64_t transpose_v_sm90_workspace(const flash_config_t *config, const flash_params_t *params) {
    const uint64_t rows = (uint64_t)params->batch * (uint64_t)params->n_heads_kv;
    const uint64_t head = (uint64_t)params->d_head_v * (uint64_t)sm90_transposed_panels(params) *
                          SM90_TRANSPOSED_KEYS;
    if (!flash_multiplies_e4m3(config) || rows * head == 0)
        return 0;
    return rows * head + SM90_TRANSPOSED_ALIGNMENT - 1;
}

void *transpose_v_sm90_place(void *workspace) {
    const uintptr_t last = (uintptr_t)workspace + SM90_TRANSPOSED_ALIGNMENT - 1;
    return (void *)(last - last % SM90_TRANSPOSED_ALIGNMENT);
}

tma_tensor_t transpose_v_sm90_tensor(const flash_params_t *params, const void *transposed) {
    const int32_t panels = sm90_transposed_panels(params);
    const int64_t panel = (int64_t)params->d_head_v * SM90_TRANSPOSED_KEYS;
    return (tma_tensor_t){.data = transposed,
                          .element_bytes = 1,
                          .n_axes = 4,
                          .extent = {SM90_TRANSPOSED_KEYS, params->d_head_v, panels,
                                     params->batch * params->n_heads_kv},
                          .stride = {1, SM90_TRANSPOSED_KEYS, panel, panel * panels}};
}
