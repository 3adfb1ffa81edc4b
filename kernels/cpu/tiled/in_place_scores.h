/*
 * This file computes S = Q K^T with K in place, as dot products of a few rows of Q with a few keys
 * at a time.
 */
#ifndef FLASH_KERNELS_CPU_TILED_IN_PLACE_SCORES_H
#define FLASH_KERNELS_CPU_TILED_IN_PLACE_SCORES_H

#include "cpu/tiled/in_place.h"
#include "cpu/tiled/pairs.h"
#include "cpu/tiled/scratch.h"
#include "cpu/tiled/types.h"
#include "cpu/tiled/words.h"

#include <string.h>

_Static_assert(DOT_ROWS == 4 || DOT_ROWS == 6, "one case for each below");

/* These are two or four rows of K, and as many that are prefetched meanwhile. */
typedef struct dot_keys {
    const char *row[4];
    int64_t prefetch; /* bytes from a row to the one to prefetch */
    bool adjoin;      /* in_place_t */
} dot_keys_t;

/* Returns the most rows of a tile of dot products. Where registers are few, more rows read K less
 * often, which pays for fp32 and for e4m3, whose decoding costs most (four rows: 1.2 times as
 * fast), and not for elements of 16 bits. */
ALWAYS_INLINE int dot_rows_max(int32_t dtype) {
    return DOT_ROWS == 4 && element_size(dtype) == 2 ? 2 : DOT_ROWS;
}

/* Returns the keys of such a tile: its sums keep the multipliers busy, and fit the registers. */
ALWAYS_INLINE int dot_n_keys(const int rows) {
    return DOT_ROWS == 4 && rows > 2 ? 2 : 4;
}

/* Returns n rows of K from `row` on; where there are only n_keys, the last one stands for the
 * others. Pairs of bf16 add the stride from row to row: multiplying it is 0.92 to 1.00 times as
 * fast with gcc 12 there, and no slower elsewhere (docs/design/cpu.md, "Addresses of rows"). */
ALWAYS_INLINE dot_keys_t dot_keys_at(const char *row, int64_t stride, int32_t n_keys, const int n) {
    dot_keys_t keys = {.row = {row}};
    UNROLL for (int j = 1; j < n; j++) keys.row[j] =
        VEC_DOTS_BF16 ? keys.row[j - 1] + (j < n_keys ? stride : 0)
                      : row + min32(j, n_keys - 1) * stride;
    return keys;
}

/* Stores the sums of a tile to s[row][0 ... keys - 1]. */
ALWAYS_INLINE void dot_store(vec_t sum[DOT_ROWS][4], const int rows, float *s, int64_t s_stride) {
    if (dot_n_keys(rows) == 4) {
        UNROLL for (int r = 0; r < rows; r++)
            vec_sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], s + r * s_stride);
        return;
    }
    UNROLL for (int r = 0; r < rows; r += 2) {
        const int other = r + 1 < rows ? r + 1 : r;
        float sums[4];
        vec_sum4(sum[r][0], sum[r][1], sum[other][0], sum[other][1], sums);
        memcpy(s + r * s_stride, sums, 2 * sizeof *s);
        memcpy(s + other * s_stride, sums + 2, 2 * sizeof *s);
    }
}

/* Computes sum[r][j] += q[r] k for a vector of K and those of Q at q. */
ALWAYS_INLINE void dot_step(const float *q, int64_t q_stride, vec_t k, const int rows, const int j,
                            vec_t sum[DOT_ROWS][4]) {
    UNROLL for (int r = 0; r < rows; r++) sum[r][j] =
        vec_fma(vec_load(FLASH_DTYPE_FP32, q + r * q_stride), k, sum[r][j]);
}

#if VEC_DOTS_BF16

/* Computes sum[r][j] += q[r] k[j] in words, and prefetches keys. */
ALWAYS_INLINE void dot_sums(int32_t dtype, const int64_t d, const dot_keys_t *k, const float *q,
                            const int rows, vec_t sum[DOT_ROWS][4]) {
    const int64_t q_stride = round_up(d, 16);
    const int n = dot_n_keys(rows);
    for (int64_t i = 0; i < d; i += 2 * VEC_WIDTH) {
        vec_t k_part[4];
        UNROLL for (int j = 0; j < n; j++) {
            prefetch_part(element_at(k->row[j] + k->prefetch, i, dtype),
                          2 * VEC_WIDTH * element_size(dtype), STEPS_NEAR);
            k_part[j] = words_load(dtype, k->row[j], i, d);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const vec_t q_part = vec_load(FLASH_DTYPE_FP32, q + r * q_stride + i / 2);
            UNROLL for (int j = 0; j < n; j++) sum[r][j] =
                words_multiply(q_part, k_part[j], sum[r][j]);
        }
    }
}

#else

/* Computes sum[r][j] += q[r] k[j], and prefetches keys. */
ALWAYS_INLINE void dot_sums(int32_t dtype, const int64_t d, const dot_keys_t *k, const float *q,
                            const int rows, vec_t sum[DOT_ROWS][4]) {
    const int64_t q_stride = round_up(d, 16);
    const int n = dot_n_keys(rows);
    const bool prefetches = prefetches_keys(dtype, rows);
    int64_t i = 0;
    for (; d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
        if (prefetches) {
            UNROLL for (int j = 0; j < n; j++)
                prefetch_part(element_at(k->row[j] + k->prefetch, i, dtype),
                              2 * VEC_WIDTH * element_size(dtype), STEPS_NEAR);
        }
        UNROLL for (int j = 0; j < n; j++) {
            vec_t pair[2];
            load_pair(dtype, element_at(k->row[j], i, dtype), pair);
            dot_step(q + i, q_stride, pair[0], rows, j, sum);
            dot_step(q + i + VEC_WIDTH, q_stride, pair[1], rows, j, sum);
        }
    }
    for (; i < d; i += VEC_WIDTH) {
        const int left = (int)min64(d - i, VEC_WIDTH);
        UNROLL for (int j = 0; j < n; j++) {
            const void *from = element_at(k->row[j], i, dtype);
            const vec_t k_part =
                left < VEC_WIDTH ? vec_load_first(dtype, from, left) : vec_load(dtype, from);
            if (prefetches)
                prefetch_line_to(element_at(k->row[j] + k->prefetch, i, dtype), STEPS_NEAR);
            dot_step(q + i, q_stride, k_part, rows, j, sum);
        }
    }
}

#endif

/* These are rows of Q, and where their scores go. */
typedef struct dot_operands {
    const float *q;
    float *s;
    int64_t s_stride;
} dot_operands_t;

/* Stores dot products of rows of Q with rows of K to s[row][0 ... keys - 1], and prefetches as many
 * rows of K. */
ALWAYS_INLINE void dot_products(int32_t dtype, const int64_t d, const dot_keys_t *k,
                                const dot_operands_t *operands, const int rows) {
    const int n = dot_n_keys(rows);
    vec_t sum[DOT_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) sum[r][j] = vec_zero();
    }
    dot_sums(dtype, d, k, operands->q, rows, sum);
    if (!k->adjoin && prefetches_keys(dtype, rows)) {
        UNROLL for (int j = 0; j < n; j++) prefetch_line_to(
            (const char *)element_at(k->row[j] + k->prefetch, d, dtype) - 1, STEPS_NEAR);
    }
    dot_store(sum, rows, operands->s, operands->s_stride);
}

/* Computes the scores of a span of rows and n_keys keys; dtype and the number of rows are constants
 * at each call. The scratch has room for surplus scores of the last tile. */
ALWAYS_INLINE void dot_tile(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                            const in_place_t *k, int32_t n_keys, const row_span_t rows) {
    const int n = dot_n_keys(rows.n);
    const int64_t stride = k->stride * element_size(dtype), prefetch = k->prefetch - k->data;
    const float *q = t->q + rows.first * t->d_pad;
    float *s = t->s + rows.first * t->c_pad + k->column;
    const char *data = k->data;
    for (int32_t head = 0; head < k->n_heads; head++) {
        const char *first = data;
        for (int32_t i = 0; i < n_keys; i += n, first += n * stride) {
            const dot_operands_t operands = {q, s + i, t->c_pad};
            dot_keys_t keys = dot_keys_at(first, stride, n_keys - i, n);
            keys.prefetch = prefetch;
            keys.adjoin = k->adjoin;
            dot_products(dtype, d, &keys, &operands, rows.n);
        }
        data += k->head_bytes;
        q += t->head_rows * t->d_pad;
        s += t->head_rows * t->c_pad;
    }
}

ALWAYS_INLINE void dot_rows(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                            const in_place_t *k, int32_t n_keys, row_span_t rows) {
    const int most = dot_rows_max(dtype);
    if (rows.n == 1)
        dot_tile(t, dtype, d, k, n_keys, (row_span_t){rows.first, 1});
    else if (most > 2 && rows.n == 2)
        dot_tile(t, dtype, d, k, n_keys, (row_span_t){rows.first, 2});
    else if (most > 2 && rows.n == 3)
        dot_tile(t, dtype, d, k, n_keys, (row_span_t){rows.first, 3});
    else if (most > 4 && rows.n == 4)
        dot_tile(t, dtype, d, k, n_keys, (row_span_t){rows.first, 4});
    else if (most > 4 && rows.n == 5)
        dot_tile(t, dtype, d, k, n_keys, (row_span_t){rows.first, 5});
    else
        dot_tile(t, dtype, d, k, n_keys, (row_span_t){rows.first, most});
}

/* Computes the scores of all rows. The first span of rows prefetches. */
ALWAYS_INLINE void score_tiles(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                               const in_place_t *k, int32_t n_keys) {
    const int64_t rows = even_part(t->head_rows, dot_rows_max(dtype));
    in_place_t keys = *k;
    for (int64_t row = 0; row < t->head_rows; row += rows) {
        const row_span_t span = {row, (int)min64(rows, t->head_rows - row)};
        dot_rows(t, dtype, d, &keys, n_keys, span);
        keys.prefetch = keys.data;
    }
}

/* Computes the scores; common head dimensions are compiled as constants. */
ALWAYS_INLINE void score_in_place(const tile_scratch_t *t, int32_t dtype, const in_place_t *k,
                                  int32_t n_keys) {
    if (t->d == 128)
        score_tiles(t, dtype, 128, k, n_keys);
    else if (t->d == 64)
        score_tiles(t, dtype, 64, k, n_keys);
    else
        score_tiles(t, dtype, t->d, k, n_keys);
}

NEVER_INLINE void score_fp32(const tile_scratch_t *t, const in_place_t *k, int32_t n_keys) {
    score_in_place(t, FLASH_DTYPE_FP32, k, n_keys);
}

NEVER_INLINE void score_fp16(const tile_scratch_t *t, const in_place_t *k, int32_t n_keys) {
    score_in_place(t, FLASH_DTYPE_FP16, k, n_keys);
}

NEVER_INLINE void score_bf16(const tile_scratch_t *t, const in_place_t *k, int32_t n_keys) {
    score_in_place(t, FLASH_DTYPE_BF16, k, n_keys);
}

NEVER_INLINE void score_e4m3(const tile_scratch_t *t, const in_place_t *k, int32_t n_keys) {
    score_in_place(t, FLASH_DTYPE_E4M3, k, n_keys);
}

ALWAYS_INLINE void score_rows(const tile_scratch_t *t, int32_t dtype, const in_place_t *k,
                              int32_t n_keys) {
    DTYPES_KNOWN(7); /* the others are decoded before */
    if (keys_are(dtype, FLASH_DTYPE_FP32))
        score_fp32(t, k, n_keys);
    else if (keys_are(dtype, FLASH_DTYPE_FP16))
        score_fp16(t, k, n_keys);
    else if (keys_are(dtype, FLASH_DTYPE_BF16))
        score_bf16(t, k, n_keys);
    else if (keys_are(dtype, FLASH_DTYPE_E4M3))
        score_e4m3(t, k, n_keys);
}

#endif
