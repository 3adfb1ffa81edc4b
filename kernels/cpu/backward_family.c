/*
 * This file has the tasks of the backward pass: how large they are, and the sizes of scratch.
 */
#include "cpu/backward_family.h"

#include "cpu/gradient_parts.h"
#include "cpu/tuning.h"

int64_t cpu_backward_task_rows(const flash_config_t *config) {
    const int64_t blocks = config->arch == FLASH_ARCH_REFERENCE ? 1 : GRADIENT_TASK_BLOCKS;
    return blocks * config->B_r;
}

bool cpu_backward_joins(const flash_config_t *dq, const flash_config_t *dkv) {
    return dq->arch != FLASH_ARCH_REFERENCE && dq->arch == dkv->arch && dq->dtype == dkv->dtype &&
           dq->B_r == dkv->B_r && dq->B_c == dkv->B_c;
}

/* The reference family keeps sums in double: of a row of Q, or of a row of K and one of V. */
static uint64_t reference_scratch_size(const flash_params_t *params) {
    gradient_memory_t memory = {0, 0};
    take_numbers(&memory, (int64_t)params->d_head + params->d_head_v, sizeof(double));
    return memory.size;
}

uint64_t cpu_backward_scratch_size(const flash_config_t *config, const flash_params_t *params,
                                   int64_t dq_rows) {
    const gradient_extent_t extent = gradient_extent(params, dq_rows);
    return config->arch == FLASH_ARCH_REFERENCE
               ? reference_scratch_size(params)
               : gradient_scratch_size(config, head_dims_of(params), &extent);
}
