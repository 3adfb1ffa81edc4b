/*
 * What a row of FLASH_MASK_BLOCKS says about neighbouring keys is told as bits, as a mask of bits
 * has them.
 */
#ifndef FLASH_KERNELS_COMMON_BLOCK_BITS_CUH
#define FLASH_KERNELS_COMMON_BLOCK_BITS_CUH

#include "common/bias.h"

/* Says whether a row shows a block of keys. at: where the row begins, in words. */
static __device__ __forceinline__ bool shows_block(const flash_bias_t &bias, int64_t at,
                                                   uint32_t block) {
    return __ldg(static_cast<const uint32_t *>(bias.mask) + at + block / 32) >> block % 32 & 1;
}

/* Returns a bit for each of 32 columns from the given one on, which may be negative; those that the
 * mask does not cover are visible. */
static __device__ __forceinline__ uint32_t shown_by_blocks(const flash_bias_t &bias, int64_t at,
                                                           int32_t column) {
    const uint32_t keys = (uint32_t)bias.block.keys, first = (uint32_t)max(column, 0);
    const int32_t covered = (int32_t)((uint32_t)bias.n_keys - (uint32_t)column);
    const uint32_t last = (uint32_t)max(min(covered, 32), 0);
    uint32_t hidden = 0, block = first / keys;
    uint32_t begin = first - (uint32_t)column, end = (block + 1) * keys - (uint32_t)column;
#pragma unroll 1
    for (; begin < last; begin = end, end += keys, ++block)
        if (!shows_block(bias, at, block))
            hidden |= ~0u << begin & ~0u >> (32 - min(end, last));
    return ~hidden;
}

#endif
