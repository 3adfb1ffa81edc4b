/*
 * This file computes S = Q K^T where K has quantised blocks: as in_place_scores.h, of elements that
 * are multiplied by their scale in registers.
 */
#ifndef FLASH_KERNELS_CPU_TILED_QUANT_SCORES_H
#define FLASH_KERNELS_CPU_TILED_QUANT_SCORES_H

#include "cpu/tiled/in_place_scores.h"
#include "cpu/tiled/quant_rows.h"
#include "cpu/tiled/types.h"

/* Computes sum[r][j] += q[r] k[j] for key number `key` and those after it. */
ALWAYS_INLINE void quant_dot_sums(int32_t dtype, const int64_t d, const quant_rows_t *k,
                                  int32_t key, const float *q, const int rows,
                                  vec_t sum[DOT_ROWS][4]) {
    const float *scales = k->scales + key;
    const int n = dot_n_keys(rows);
    for (int64_t b = 0; b < d / FLASH_QUANT_BLOCK; b++, scales += IN_PLACE_KEYS) {
        UNROLL for (int j = 0; j < n; j++) {
            const char *block = k->row[key + j] + b * quant_block_bytes(dtype);
            const vec_t scale = vec_set1(scales[j]);
            UNROLL for (int i = 0; i < FLASH_QUANT_BLOCK; i += VEC_WIDTH)
                dot_step(q + b * FLASH_QUANT_BLOCK + i, d,
                         vec_mul(quant_block_elements(dtype, block, i), scale), rows, j, sum);
        }
    }
}

/* Computes the scores of n_keys keys; dtype and the number of rows are constants at each call. The
 * scratch has room for surplus scores of the last keys. */
ALWAYS_INLINE void quant_dot_tile(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                                  const quant_rows_t *k, int32_t n_keys, const int rows) {
    const int n = dot_n_keys(rows);
    convert_scales(k, d);
    for (int32_t key = 0; key < n_keys; key += n) {
        vec_t sum[DOT_ROWS][4];
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < n; j++) sum[r][j] = vec_zero();
        }
        UNROLL for (int j = 0; j < n; j++) prefetch_quant_row(dtype, d, k->next[key + j]);
        quant_dot_sums(dtype, d, k, key, t->q, rows, sum);
        dot_store(sum, rows, t->s + key, t->c_pad);
    }
}

ALWAYS_INLINE void quant_dot_rows(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                                  const quant_rows_t *k, int32_t n_keys) {
    if (t->head_rows == 1)
        quant_dot_tile(t, dtype, d, k, n_keys, 1);
    else if (t->head_rows == 2)
        quant_dot_tile(t, dtype, d, k, n_keys, 2);
    else if (t->head_rows == 3)
        quant_dot_tile(t, dtype, d, k, n_keys, 3);
    else if (DOT_ROWS == 4 || t->head_rows == 4)
        quant_dot_tile(t, dtype, d, k, n_keys, 4);
    else if (t->head_rows == 5)
        quant_dot_tile(t, dtype, d, k, n_keys, 5);
    else
        quant_dot_tile(t, dtype, d, k, n_keys, DOT_ROWS);
}

/* Common head dimensions are compiled as constants. */
ALWAYS_INLINE void quant_score(const tile_scratch_t *t, int32_t dtype, const quant_rows_t *k,
                               int32_t n_keys) {
    if (t->d == 128)
        quant_dot_rows(t, dtype, 128, k, n_keys);
    else if (t->d == 64)
        quant_dot_rows(t, dtype, 64, k, n_keys);
    else
        quant_dot_rows(t, dtype, t->d, k, n_keys);
}

NEVER_INLINE void score_q8_0(const tile_scratch_t *t, const quant_rows_t *k, int32_t n_keys) {
    quant_score(t, FLASH_DTYPE_Q8_0, k, n_keys);
}

NEVER_INLINE void score_q4_0(const tile_scratch_t *t, const quant_rows_t *k, int32_t n_keys) {
    quant_score(t, FLASH_DTYPE_Q4_0, k, n_keys);
}

/* Computes the scores of all rows of the task's one head. */
static inline void score_quantised(const tile_scratch_t *t, int32_t dtype, const quant_rows_t *k,
                                   int32_t n_keys) {
    if (keys_are(dtype, FLASH_DTYPE_Q8_0))
        score_q8_0(t, k, n_keys);
    else if (keys_are(dtype, FLASH_DTYPE_Q4_0))
        score_q4_0(t, k, n_keys);
}

#endif
