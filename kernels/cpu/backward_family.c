/*
 * This file has the sizes of scratch of the backward pass.
 */
#include "cpu/backward_family.h"

#include "cpu/tuning.h"

/* The reference family keeps sums in double: of a row of Q, or of a row of K and one of V. */
uint64_t cpu_backward_scratch_size(const flash_config_t *config, const flash_params_t *params) {
    (void)config;
    const uint64_t columns = (uint64_t)params->d_head + (uint64_t)params->d_head_v;
    const uint64_t bytes = columns * sizeof(double);
    return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}
