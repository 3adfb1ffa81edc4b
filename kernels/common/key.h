/*
 * Host and device code take from here what a key is, a row of K or of V, in memory.
 */
#ifndef FLASH_KERNELS_COMMON_KEY_H
#define FLASH_KERNELS_COMMON_KEY_H

#include "common/latent.h"
#include "common/quant_block.h"

/* Returns the elements, as strides count them, of a key of that number of columns. */
DTYPE_CONSTANT int64_t key_elements(int32_t dtype, int64_t columns) {
    return dtype == FLASH_DTYPE_LATENT_E4M3 ? FLASH_LATENT_TOKEN_BYTES
           : has_quant_blocks(dtype)        ? columns / FLASH_QUANT_BLOCK * quant_block_bytes(dtype)
                                            : columns;
}

/* Returns the bytes of such a key. */
DTYPE_CONSTANT int64_t key_bytes(int32_t dtype, int64_t columns) {
    return key_elements(dtype, columns) * dtype_size(dtype);
}

#endif
