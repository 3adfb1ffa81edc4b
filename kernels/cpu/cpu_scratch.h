/*
 * This file computes how much memory tiled kernels need; tiled/scratch.h divides it. Sizes are
 * bytes, and multiples of 64.
 */
#ifndef FLASH_KERNELS_CPU_SCRATCH_H
#define FLASH_KERNELS_CPU_SCRATCH_H

#include <stdint.h>

/* Returns the size of a block of packed keys: K, V, and whether V is finite. */
static inline uint64_t tiled_block_size(int32_t B_c, int64_t d_head, int64_t element_size) {
    const uint64_t d = ((uint64_t)d_head + 15) / 16 * 16;
    const uint64_t c = ((uint64_t)B_c + 15) / 16 * 16;
    return 2 * c * d * (uint64_t)element_size + 64;
}

/* Returns the rows that a task's scratch has room for: at least B_r, and more where a task of split
 * keys has more. */
static inline int64_t cpu_scratch_rows(int32_t B_r, int64_t n_rows) {
    return n_rows > B_r ? n_rows : B_r;
}

/* Returns the scratch size of one task of so many rows, with blocks of B_c keys. */
static inline uint64_t tiled_scratch_size(int64_t rows, int32_t B_c, int64_t d_head,
                                          int64_t element_size) {
    const uint64_t d = ((uint64_t)d_head + 15) / 16 * 16;
    const uint64_t r = ((uint64_t)rows + 15) / 16 * 16;
    const uint64_t c = ((uint64_t)B_c + 15) / 16 * 16;
    const uint64_t q = r * d, o = r * d, scores = r * c, notes = 20 * r, totals = r * (d + 16);
    return (q + o + scores + notes) * sizeof(float) + totals * sizeof(double) +
           tiled_block_size(B_c, d_head, element_size);
}

#endif
