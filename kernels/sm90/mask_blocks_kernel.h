/*
 * Host and device code agree on this for the kernel that looks at a mask ahead of an SM90 kernel:
 * in blocks of SM90_MASK_BLOCKS_WARPS warps, as many as sm90_mask_blocks_grid() says.
 */
#ifndef FLASH_KERNELS_SM90_MASK_BLOCKS_KERNEL_H
#define FLASH_KERNELS_SM90_MASK_BLOCKS_KERNEL_H

#include "common/host_device.h"
#include "common/params.h"

enum { SM90_MASK_BLOCKS_WARPS = 4, SM90_MASK_BLOCKS_MOST_KEYS = 128 /* of a block */ };

typedef struct sm90_mask_blocks_params {
    flash_params_t problem; /* with a mask, and bias.blocks where the kernel writes */
    int32_t B_r;
    int32_t B_c; /* at most SM90_MASK_BLOCKS_MOST_KEYS */
} sm90_mask_blocks_params_t;

/* Counts the lanes that look at a block of keys together: a warp; with FLASH_MASK_BLOCKS, which has
 * a few words for it, one. */
FLASH_HOST_DEVICE static inline int32_t sm90_mask_blocks_lanes(const flash_bias_t *bias) {
    return bias->kind == FLASH_MASK_BLOCKS ? 1 : 32;
}

/* Counts the thread blocks that look at the blocks of keys of a tile. */
FLASH_HOST_DEVICE static inline int32_t sm90_mask_blocks_per_tile(const flash_bias_t *bias) {
    const int32_t at_once = SM90_MASK_BLOCKS_WARPS * 32 / sm90_mask_blocks_lanes(bias);
    return (bias->blocks.blocks + at_once - 1) / at_once;
}

FLASH_HOST_DEVICE static inline int64_t sm90_mask_blocks_grid(const flash_bias_t *bias) {
    const flash_mask_blocks_t *m = &bias->blocks;
    return (int64_t)m->entries * m->heads * m->tiles * sm90_mask_blocks_per_tile(bias);
}

#ifndef __CUDACC__
/* The host launches the kernel and never calls it. */
void flash_sm90_mask_blocks(sm90_mask_blocks_params_t params);
#endif

#endif
