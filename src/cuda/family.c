/*
 * See family.h.
 */
#include "cuda/family.h"

#include <stddef.h>

const char *cuda_launch_obstacle(const cuda_family_t *family, const flash_config_t *config,
                                 const problem_t *problem, const device_t *device) {
    const cuda_block_t block = family->block(config);
    if (block.shared_bytes + block.static_shared_bytes > device->shared_memory_per_block)
        return "a block needs more shared memory than the device has";
    if (family->tiles(config, &problem->params) > INT32_MAX)
        return "the problem has more tiles than a launch can take";
    return NULL;
}
