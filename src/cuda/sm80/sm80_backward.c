#include "cuda/sm80/sm80_backward.h"

#include "config/rules.h"
#include "cuda/family.h"
#include "kernels/sm80/backward_kernel.h"

#include <stddef.h>

DEFINE_CHECK(SM80_BACKWARD_RULES)

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm80_backward_threads(config), sm80_backward_shared_bytes(config),
                          SM80_BACKWARD_STATIC_SHARED_BYTES};
}

static cuda_ds_tile_t ds_tile(const flash_config_t *config) {
    (void)config;
    return (cuda_ds_tile_t){.queries = SM80_DS_TILE_ROWS, .keys = SM80_DS_TILE_ROWS};
}

static cuda_block_t dq_of_ds_block(const flash_config_t *config) {
    const flash_config_t of_ds = sm80_dq_of_ds_config(config);
    return (cuda_block_t){sm80_backward_threads(&of_ds), sm80_dq_of_ds_shared_bytes(&of_ds),
                          SM80_BACKWARD_STATIC_SHARED_BYTES};
}

static const cuda_family_t cuda = {.block = block,
                                   .tiles = sm80_backward_blocks,
                                   .ds_tile = ds_tile,
                                   .dq_of_ds_block = dq_of_ds_block};

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    return cuda_launch_obstacle(&cuda, config, problem, device);
}

/* Counts the warps that share a multiprocessor, at most those that registers are assigned for. Of
 * shared memory it has what a block can have, and what the system takes of that. */
static int32_t warps_at_once(const flash_config_t *config, const device_t *device) {
    const int32_t of_block = sm80_backward_shared_bytes(config) +
                             SM80_BACKWARD_STATIC_SHARED_BYTES + SM80_BACKWARD_SHARED_RESERVED;
    const int32_t blocks =
        (device->shared_memory_per_block + SM80_BACKWARD_SHARED_RESERVED) / of_block;
    const int32_t warps = blocks * config->n_warps;
    return warps < SM80_BACKWARD_MOST_WARPS ? warps : SM80_BACKWARD_MOST_WARPS;
}

/* Most warps at a time come first, then what a block has more of at a time. */
static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    (void)problem;
    return (family_rank_t){.time = -warps_at_once(config, device),
                           .preference = -sm80_backward_shared_bytes(config)};
}

const family_op_t sm80_backward_dq = {.check = check,
                                      .obstacle = obstacle,
                                      .rank = rank,
                                      .cuda = &cuda,
                                      .calls = &sm80_backward_calls};
const family_op_t sm80_backward_dkv = {.check = check,
                                       .obstacle = obstacle,
                                       .rank = rank,
                                       .cuda = &cuda,
                                       .calls = &sm80_backward_calls};
