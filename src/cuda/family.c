/*
 * This file says whether a device can be given a launch, for every CUDA family.
 */
#include "cuda/family.h"

#include <stddef.h>

static bool hides_holes(const cuda_family_t *family, const flash_config_t *config) {
    return family->hides_holes != NULL ? family->hides_holes(config)
                                       : (config->features & FLASH_FEATURE_BIAS) != 0;
}

const char *cuda_launch_obstacle(const cuda_family_t *family, const flash_config_t *config,
                                 const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const cuda_block_t block = family->block(config);
    if (block.shared_bytes + block.static_shared_bytes > device->shared_memory_per_block)
        return "a block needs more shared memory than the device has";
    if ((int64_t)p->batch * p->n_heads > INT32_MAX || family->tiles(config, p) > INT32_MAX)
        return "the problem has more tiles than a launch can take";
    if (p->bias.has_page_holes && !hides_holes(family, config))
        return "the call has FLASH_FLAG_PAGE_HOLES, and of CUDA kernels only those with bias, but "
               "of "
               "SM80_WIDE none, and those of SM90_MLA and SM90_WIDE that convert K hide keys in "
               "holes of a page table";
    return NULL;
}
