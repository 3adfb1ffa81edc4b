/*
 * S = Q K^T for a block of keys: from packed K for many rows, from K in place for few.
 */
#ifndef FLASH_KERNELS_CPU_TILED_SCORES_H
#define FLASH_KERNELS_CPU_TILED_SCORES_H

#include "cpu/tiled/ahead.h"
#include "cpu/tiled/multiply.h"
#include "cpu/tiled/pack.h"

_Static_assert(DOT_ROWS == 2 || DOT_ROWS == 6, "one case for each below");

/* ---- Many rows ---- */

/* Scores of a tile of rows against the keys of one panel that any of the rows sees. */
static inline void score_tile(const tile_scratch_t *t, flash_range_t block, int64_t panel_begin,
                              int64_t row, int rows) {
    flash_range_t common, any;
    tile_columns(t, block, row, rows, &common, &any);
    const panel_t panel = panel_of(panel_begin, t->d, t->c_pad);
    const int64_t begin = any.begin > panel_begin ? any.begin / VEC_WIDTH * VEC_WIDTH : panel_begin;
    const int64_t end = min64(panel_begin + panel.width, any.end);
    if (begin >= end)
        return;
    const tile_product_t product = {.a = t->q + row * t->d_pad,
                                    .a_stride = t->d_pad,
                                    .b = t->k + panel.offset + (begin - panel_begin),
                                    .b_stride = panel.width,
                                    .c = t->s + row * t->c_pad + begin,
                                    .c_stride = t->c_pad,
                                    .depth = t->d,
                                    .accumulate = false,
                                    .ahead = ahead_of(t->k + panel.offset, panel, t->d, row)};
    multiply_fp32(&product, rows, (int)((end - begin + VEC_WIDTH - 1) / VEC_WIDTH), 0);
}

static inline void score_packed(const tile_scratch_t *t, flash_range_t block) {
    for (int64_t panel = 0; panel < block.end - block.begin; panel += TILE_COLUMNS)
        for (int64_t row = 0; row < t->n_rows; row += TILE_ROWS)
            score_tile(t, block, panel, row, (int)min64(TILE_ROWS, t->n_rows - row));
}

/* ---- Few rows ---- */

/* Dot products of rows of Q with four rows of K, to s[row][0 ... 3]; rows and dtype are constants
 * at each call. */
ALWAYS_INLINE void dot_tile(const tile_scratch_t *t, int32_t dtype, const void *const k[4],
                            const float *q, const int rows, float *s) {
    vec_t sum[DOT_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < 4; j++) sum[r][j] = vec_zero();
    }
    const int64_t whole = t->d / VEC_WIDTH * VEC_WIDTH;
    for (int64_t i = 0; i < whole; i += VEC_WIDTH) {
        UNROLL for (int j = 0; j < 4; j++) {
            const vec_t k_part = vec_load(dtype, element_at(k[j], i, dtype));
            UNROLL for (int r = 0; r < rows; r++) {
                const vec_t q_part = vec_load(FLASH_DTYPE_FP32, q + r * t->d_pad + i);
                sum[r][j] = vec_fma(q_part, k_part, sum[r][j]);
            }
        }
    }
    if (whole < t->d) {
        UNROLL for (int j = 0; j < 4; j++) {
            const void *rest = element_at(k[j], whole, dtype);
            const vec_t k_part = vec_load_first(dtype, rest, (int)(t->d - whole));
            UNROLL for (int r = 0; r < rows; r++) {
                const vec_t q_part = vec_load(FLASH_DTYPE_FP32, q + r * t->d_pad + whole);
                sum[r][j] = vec_fma(q_part, k_part, sum[r][j]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        vec_sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], s + r * t->c_pad);
}

ALWAYS_INLINE void dot_rows(const tile_scratch_t *t, int32_t dtype, const void *const k[4],
                            const float *q, int rows, float *s) {
    switch (rows) {
    case 1:
        dot_tile(t, dtype, k, q, 1, s);
        break;
    case 2:
        dot_tile(t, dtype, k, q, 2, s);
        break;
#if DOT_ROWS == 6
    case 3:
        dot_tile(t, dtype, k, q, 3, s);
        break;
    case 4:
        dot_tile(t, dtype, k, q, 4, s);
        break;
    case 5:
        dot_tile(t, dtype, k, q, 5, s);
        break;
#endif
    default:
        dot_tile(t, dtype, k, q, DOT_ROWS, s);
        break;
    }
}

/* Scores of all rows against all keys of the block, in place. A group of four that is cut short
 * repeats its last key; the block's columns have room for the surplus scores. */
ALWAYS_INLINE void score_in_place(const tile_scratch_t *t, const flash_params_t *p,
                                  const cpu_task_t *task, int32_t dtype, rows_ahead_t *ahead,
                                  flash_range_t block) {
    const int32_t n_keys = block.end - block.begin;
    for (int32_t i = 0; i < n_keys; i += 4) {
        const void *four[4];
        for (int32_t j = 0; j < 4; j++) {
            const int32_t key = block.begin + min32(i + j, n_keys - 1);
            four[j] = element_at(p->k, cpu_key_index(task, &p->k_stride, key), dtype);
            prefetch_next(&ahead->k);
            prefetch_next(&ahead->v);
        }
        for (int64_t row = 0; row < t->n_rows; row += DOT_ROWS)
            dot_rows(t, dtype, four, t->q + row * t->d_pad, (int)min64(DOT_ROWS, t->n_rows - row),
                     t->s + row * t->c_pad + i);
    }
}

#endif
