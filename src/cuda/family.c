/*
 * This file says whether a device can be given a launch, for every CUDA family.
 */
#include "cuda/family.h"

#include <stddef.h>

const char *cuda_launch_obstacle(const cuda_family_t *family, const flash_config_t *config,
                                 const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const cuda_block_t block = family->block(config);
    if (block.shared_bytes + block.static_shared_bytes > device->shared_memory_per_block)
        return "a block needs more shared memory than the device has";
    if ((int64_t)p->batch * p->n_heads > INT32_MAX || family->tiles(config, p) > INT32_MAX)
        return "the problem has more tiles than a launch can take";
    return NULL;
}
