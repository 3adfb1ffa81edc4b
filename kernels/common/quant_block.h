/*
 * Host and CPU code take from here how rows of FLASH_DTYPE_Q8_0 and FLASH_DTYPE_Q4_0 are made of
 * quantised blocks, each of FLASH_QUANT_BLOCK columns behind their scale (flashattn.h).
 */
#ifndef FLASH_KERNELS_COMMON_QUANT_BLOCK_H
#define FLASH_KERNELS_COMMON_QUANT_BLOCK_H

#include "common/dtype.h"

enum {
    QUANT_SCALE_BYTES = 2, /* of fp16, before a block's elements */
    Q8_0_LARGEST = 127,    /* element that is quantised to */
    Q4_0_ZERO = 8          /* element whose value is 0 */
};

#ifdef __cplusplus
static_assert(FLASH_Q8_0_BYTES == QUANT_SCALE_BYTES + FLASH_QUANT_BLOCK, "a byte per column");
static_assert(FLASH_Q4_0_BYTES == QUANT_SCALE_BYTES + FLASH_QUANT_BLOCK / 2, "half a byte");
#else
_Static_assert(FLASH_Q8_0_BYTES == QUANT_SCALE_BYTES + FLASH_QUANT_BLOCK, "a byte per column");
_Static_assert(FLASH_Q4_0_BYTES == QUANT_SCALE_BYTES + FLASH_QUANT_BLOCK / 2, "half a byte");
#endif

/* Returns the bytes of a quantised block; 0 for a type that has none. */
DTYPE_CONSTANT int32_t quant_block_bytes(int32_t dtype) {
    return dtype == FLASH_DTYPE_Q8_0   ? FLASH_Q8_0_BYTES
           : dtype == FLASH_DTYPE_Q4_0 ? FLASH_Q4_0_BYTES
                                       : 0;
}

DTYPE_CONSTANT int32_t has_quant_blocks(int32_t dtype) {
    return quant_block_bytes(dtype) != 0;
}

#endif
