/*
 * Sums of gradients begin as zeros, are cut into parts as those of the forward pass are (totals.h),
 * and are stored here.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_SUMS_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_SUMS_H

#include "common/gradients.h"
#include "cpu/gradient_parts.h"
#include "cpu/tiled/totals.h"

#include "cpu/tiled/gradient_multiply.h"
#include "cpu/tiled/pack.h"

#include <string.h>

/* Returns the rows of sums of n keys. */
static inline int64_t rows_of_keys(const gradient_sums_t *sums, int64_t n) {
    return sums->is_turned ? gradient_tiles(sums->columns) : n;
}

static inline void start_sums(gradient_sums_t *sums, int64_t rows) {
    memset(sums->sum, 0, (size_t)(rows * sums->stride) * sizeof *sums->sum);
    sums->has_totals = false;
}

static inline void end_sums_part(gradient_sums_t *sums, int64_t rows) {
    const int64_t n = rows * sums->stride;
    if (sums->total == NULL || n == 0)
        return;
    if (!sums->has_totals)
        memset(sums->total, 0, (size_t)n * sizeof *sums->total);
    sums->has_totals = true;
    move_sums(sums->sum, sums->total, n);
}

/* Adds all parts, after the last block. */
static inline void end_sums(gradient_sums_t *sums, int64_t rows) {
    if (sums->has_totals)
        add_totals(sums->total, sums->sum, rows * sums->stride);
}

/* Stores a row, of a type that is a constant at each call. */
ALWAYS_INLINE void store_gradient_of(int32_t dtype, const float *sums, int64_t n, float scale,
                                     void *to, bool adds) {
    const vec_t scales = vec_set1(scale);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        const vec_t sum = vec_load(FLASH_DTYPE_FP32, sums + i);
        void *at = element_at_mutable(to, i, dtype);
        const vec_t x =
            adds ? vec_fma(scales, sum, load_columns(dtype, to, i, n)) : vec_mul(scales, sum);
        if (n - i >= VEC_WIDTH)
            vec_store(dtype, at, x);
        else
            vec_store_first(dtype, at, x, (int)(n - i));
    }
}

/* Stores row `row` of the sums, times scale, at an index of the gradient. */
NEVER_INLINE void store_gradient(const gradient_sums_t *sums, int64_t row, float scale,
                                 const flash_gradient_t *gradient, int64_t index) {
    const float *from = sums->sum + row * sums->stride;
    void *to = element_at_mutable(gradient->data, index, gradient->dtype);
    if (gradient->dtype == FLASH_DTYPE_FP16)
        store_gradient_of(FLASH_DTYPE_FP16, from, sums->columns, scale, to, false);
    else if (gradient->dtype == FLASH_DTYPE_BF16)
        store_gradient_of(FLASH_DTYPE_BF16, from, sums->columns, scale, to, false);
    else
        store_gradient_of(FLASH_DTYPE_FP32, from, sums->columns, scale, to, gradient->adds);
}

/* Turns the sums of 16 keys, from number `key` on, to rows of `to`. */
NEVER_INLINE void turn_sums(const gradient_sums_t *sums, int64_t key, const gradient_sums_t *to) {
#if GRADIENTS_ON_TILES
    for (int64_t row = 0; row < sums->columns; row += VEC_WIDTH) {
        vec_t square[VEC_WIDTH];
        for (int64_t i = 0; i < VEC_WIDTH; i++)
            square[i] = vec_load(FLASH_DTYPE_FP32, sums->sum + (row + i) * sums->stride + key);
        vec_transpose(square);
        store_square(square, VEC_WIDTH, to->sum + row, to->stride);
    }
#else
    (void)sums;
    (void)key;
    (void)to;
#endif
}

#endif
