/*
 * Scratch memory of the tiled kernels (tiled/scratch.h divides it).
 */
#ifndef FLASH_KERNELS_CPU_SCRATCH_H
#define FLASH_KERNELS_CPU_SCRATCH_H

#include <stdint.h>

/* Bytes of a block of packed K and V, whose elements are of so many bytes, and of what is known of
 * V; a multiple of 64. */
static inline uint64_t tiled_block_size(int32_t B_c, int64_t d_head, int64_t element_size) {
    const uint64_t d = ((uint64_t)d_head + 15) / 16 * 16;
    const uint64_t c = ((uint64_t)B_c + 15) / 16 * 16;
    return 2 * c * d * (uint64_t)element_size + 64;
}

/* Rows that a task's scratch memory has room for: a task that splits the keys may have more than
 * B_r. */
static inline int64_t cpu_scratch_rows(int32_t B_r, int64_t n_rows) {
    return n_rows > B_r ? n_rows : B_r;
}

/* Bytes that so many rows and blocks of B_c keys need for one task; a multiple of 64. */
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
