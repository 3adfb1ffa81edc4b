/*
 * This file loads columns of rows of quantised blocks (common/quant_block.h). The product of an
 * element and its scale is exact in fp32.
 */
#ifndef FLASH_KERNELS_CPU_TILED_QUANT_BLOCK_H
#define FLASH_KERNELS_CPU_TILED_QUANT_BLOCK_H

#include "cpu/convert.h"
#include "cpu/vector.h"

#include <string.h>

ALWAYS_INLINE vec_t quant_block_scale(const char *block) {
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return vec_set1_fp16(half);
}

/* Loads VEC_WIDTH elements of a block, from number `first` on, a multiple of VEC_WIDTH, without
 * their scale. */
ALWAYS_INLINE vec_t quant_block_elements(int32_t dtype, const char *block, int64_t first) {
    const char *elements = block + QUANT_SCALE_BYTES;
    const int64_t half = FLASH_QUANT_BLOCK / 2;
    if (dtype == FLASH_DTYPE_Q8_0)
        return vec_load_bytes(elements + first);
    return first < half ? vec_load_nibbles(elements + first, false)
                        : vec_load_nibbles(elements + first - half, true);
}

/* Loads VEC_WIDTH columns of a row from number `first` on, a multiple of VEC_WIDTH. */
ALWAYS_INLINE vec_t load_quantised(int32_t dtype, const void *row, int64_t first) {
    const char *block = quant_block_at(row, first, dtype);
    return vec_mul(quant_block_elements(dtype, block, first % FLASH_QUANT_BLOCK),
                   quant_block_scale(block));
}

/* Decodes a row of d columns, a multiple of FLASH_QUANT_BLOCK. */
ALWAYS_INLINE void decode_quantised(int32_t dtype, const char *row, int64_t d, float *to) {
    const int bytes = quant_block_bytes(dtype);
    for (int64_t column = 0; column < d; column += FLASH_QUANT_BLOCK, row += bytes) {
        const vec_t scale = quant_block_scale(row);
        UNROLL for (int i = 0; i < FLASH_QUANT_BLOCK; i += VEC_WIDTH) vec_store(
            FLASH_DTYPE_FP32, to + column + i, vec_mul(quant_block_elements(dtype, row, i), scale));
    }
}

#endif
