/*
 * Two vectors of elements in the order that costs least: of bf16 the even ones, then the odd ones,
 * where the instruction set has VEC_SPLITS_BF16; otherwise as they lie.
 */
#ifndef FLASH_KERNELS_CPU_TILED_PAIRS_H
#define FLASH_KERNELS_CPU_TILED_PAIRS_H

#include "cpu/convert.h"
#include "cpu/vector.h"

ALWAYS_INLINE void load_pair(int32_t dtype, const void *from, vec_t pair[2]) {
#if VEC_SPLITS_BF16
    if (dtype == FLASH_DTYPE_BF16) {
        vec_split_bf16(from, pair);
        return;
    }
#endif
    pair[0] = vec_load(dtype, from);
    pair[1] = vec_load(dtype, element_at(from, VEC_WIDTH, dtype));
}

/* From that order to the elements' own. */
ALWAYS_INLINE void sort_pair(int32_t dtype, vec_t pair[2]) {
#if VEC_SPLITS_BF16
    if (dtype == FLASH_DTYPE_BF16)
        vec_join(pair);
#endif
    (void)dtype;
    (void)pair;
}

#endif
