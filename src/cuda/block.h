/*
 * What the host knows of the kernels of both CUDA families: their blocks and their tiles.
 */
#ifndef FLASH_CUDA_BLOCK_H
#define FLASH_CUDA_BLOCK_H

#include "kernels/sm80/sm80_kernel.h"
#include "kernels/sm90/sm90_kernel.h"

/* What a block of a kernel takes of a multiprocessor. */
typedef struct cuda_block {
    int32_t threads;
    int32_t shared_bytes;        /* dynamic */
    int32_t static_shared_bytes; /* at most */
} cuda_block_t;

static inline cuda_block_t cuda_block(const flash_config_t *config) {
    if (config->arch == FLASH_ARCH_SM90)
        return (cuda_block_t){sm90_block_threads(config), sm90_shared_bytes(config), 0};
    return (cuda_block_t){sm80_block_threads(config), sm80_shared_bytes(config),
                          SM80_STATIC_SHARED_BYTES};
}

/* Tiles of B_r queries that a launch takes; INT32_MAX is the most it can. */
static inline int64_t cuda_tiles(const flash_config_t *config, const flash_params_t *params) {
    return config->arch == FLASH_ARCH_SM90 ? sm90_tiles(config, params)
                                           : sm80_grid_blocks(config, params);
}

#endif
