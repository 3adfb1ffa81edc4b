/*
 * This file computes how much memory tiled kernels need; tiled/scratch.h divides it. Sizes are
 * bytes, and multiples of 64.
 */
#ifndef FLASH_KERNELS_CPU_SCRATCH_H
#define FLASH_KERNELS_CPU_SCRATCH_H

#include "common/params.h"

#include <stdint.h>

/* The head dimensions of a problem. */
typedef struct head_dims {
    int64_t qk; /* of Q and K */
    int64_t v;  /* of V and O */
} head_dims_t;

static inline head_dims_t head_dims_of(const flash_params_t *params) {
    const head_dims_t dims = {params->d_head, params->d_head_v};
    return dims;
}

static inline uint64_t tiled_pad(int64_t n) {
    return ((uint64_t)n + 15) / 16 * 16;
}

/* Counts the elements of a block of packed K. There is room for two keys of V, too
 * (accumulate_key()). */
static inline uint64_t tiled_k_elements(int32_t B_c, head_dims_t dims) {
    const uint64_t k = tiled_pad(B_c) * tiled_pad(dims.qk), two_keys = 2 * tiled_pad(dims.v);
    return k > two_keys ? k : two_keys;
}

/* Returns the size of a block of packed keys: K, V, and whether V is finite. */
static inline uint64_t tiled_block_size(int32_t B_c, head_dims_t dims, int64_t element_size) {
    const uint64_t v = tiled_pad(B_c) * tiled_pad(dims.v);
    return (tiled_k_elements(B_c, dims) + v) * (uint64_t)element_size + 64;
}

/* Returns the rows that a task's scratch has room for: at least B_r, and more where a task of split
 * keys has more. */
static inline int64_t cpu_scratch_rows(int32_t B_r, int64_t n_rows) {
    return n_rows > B_r ? n_rows : B_r;
}

/* Returns the scratch size of a task of `rows` rows, with blocks of B_c keys. */
static inline uint64_t tiled_scratch_size(int64_t rows, int32_t B_c, head_dims_t dims,
                                          int64_t element_size) {
    const uint64_t r = tiled_pad(rows), d_v = tiled_pad(dims.v);
    const uint64_t q = r * tiled_pad(dims.qk), o = r * d_v, scores = r * tiled_pad(B_c);
    const uint64_t notes = 20 * r, totals = r * (d_v + 16);
    return (q + o + scores + notes) * sizeof(float) + totals * sizeof(double) +
           tiled_block_size(B_c, dims, element_size);
}

#endif
