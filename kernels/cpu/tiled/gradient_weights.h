/*
 * This file turns scores S into P = exp(S - log_sum) and dP into dS = P (dP - D). Where products
 * take words of bf16, both are rounded then. A pair that a row does not see has P = HIDDEN and dS =
 * 0.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_WEIGHTS_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_WEIGHTS_H

#include "cpu/tiled/gradient_pair.h"

#include <float.h>
#include <string.h>

/* Columns whose S and dP are in a level 1 or 2 cache still when they become P and dS. */
enum { PAIR_COLUMNS = TILE_COLUMNS > 64 ? TILE_COLUMNS : 64 };

/* A row's scale, log_sum and D, in all lanes. */
typedef struct row_terms {
    vec_t scale;
    vec_t log_sum;
    vec_t d;
} row_terms_t;

ALWAYS_INLINE row_terms_t row_terms(float scale, float log_sum, float d) {
    return (row_terms_t){vec_set1(scale), vec_set1(log_sum), vec_set1(d)};
}

/* P and dS of some keys. */
typedef struct weights {
    vec_t p;
    vec_t ds;
} weights_t;

/* Turns scores into P and dP into dS. What is -infinity is hidden. */
ALWAYS_INLINE weights_t weights_of(const row_terms_t *row, const float *s, const float *dp) {
    const vec_t least = vec_set1(-FLT_MAX);
    const vec_t score = vec_mul(row->scale, vec_load(FLASH_DTYPE_FP32, s));
    const vec_t p = vec_exp2(vec_mul(vec_sub(score, row->log_sum), vec_set1(LOG2_E)));
    const vec_t ds = vec_mul(p, vec_sub(vec_load(FLASH_DTYPE_FP32, dp), row->d));
    return (weights_t){vec_select_less(score, least, vec_set1(HIDDEN), p),
                       vec_select_less(score, least, vec_zero(), ds)};
}

/* Turns n scores into P and dP into dS where they lie. */
ALWAYS_INLINE void scores_to_gradients(const row_terms_t *row, float *s, float *dp, int64_t n) {
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        const weights_t weights = weights_of(row, s + i, dp + i);
        vec_store(FLASH_DTYPE_FP32, s + i, weights.p);
        vec_store(FLASH_DTYPE_FP32, dp + i, weights.ds);
    }
}

static inline void hide_columns(float *p, float *ds, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        p[i] = HIDDEN;
        ds[i] = 0;
    }
}

/* ---- Words ---- */

/* Makes words of P and dS of two rows and 2 VEC_WIDTH keys, at one place of each matrix of words.
 */
ALWAYS_INLINE void store_words(const gradient_parts_t *parts, int64_t row, int64_t column,
                               weights_t rows[2][2]) {
#if VEC_DOTS_BF16
    const int64_t stride = parts->s_stride, to = row / 2 * stride + column;
    float *along = parts->ds_along + row * stride + column / 2;
    for (int r = 0; r < 2; r++)
        vec_store(FLASH_DTYPE_FP32, along + r * stride,
                  vec_bf16_along(rows[r][0].ds, rows[r][1].ds));
    for (int i = 0; i < 2; i++) {
        vec_store(FLASH_DTYPE_FP32, parts->p_across + to + i * VEC_WIDTH,
                  vec_bf16_across(rows[0][i].p, rows[1][i].p));
        vec_store(FLASH_DTYPE_FP32, parts->ds_across + to + i * VEC_WIDTH,
                  vec_bf16_across(rows[0][i].ds, rows[1][i].ds));
    }
#else
    (void)parts;
    (void)row;
    (void)column;
    (void)rows;
#endif
}

/* Makes words of P and dS of two rows, columns begin ... end - 1 rounded up to whole vectors, and
 * to two of them. */
NEVER_INLINE void words_of_pairs(const gradient_parts_t *parts, int64_t row,
                                 flash_range_t columns) {
    for (int64_t column = columns.begin; column < columns.end; column += 2 * VEC_WIDTH) {
        weights_t rows[2][2];
        for (int i = 0; i < 4; i++) {
            const int64_t at = (row + i / 2) * parts->s_stride + column + i % 2 * VEC_WIDTH;
            rows[i / 2][i % 2] = (weights_t){vec_load(FLASH_DTYPE_FP32, parts->p + at),
                                             vec_load(FLASH_DTYPE_FP32, parts->ds + at)};
        }
        store_words(parts, row, column, rows);
    }
}

/* Hides what words have beyond the block's rows and keys, and makes the words of some columns. */
static inline void finish_words(const gradient_parts_t *parts, int64_t n_rows,
                                flash_range_t columns) {
    const int64_t stride = parts->s_stride;
    const int64_t end = round_up(columns.end, PRODUCT_WORDS * WORD_ELEMENTS);
    if (WORD_ELEMENTS == 1)
        return;
    for (int64_t row = 0; row < n_rows; row++)
        hide_columns(parts->p + row * stride, parts->ds + row * stride, columns.end, end);
    if (n_rows % WORD_ELEMENTS != 0)
        hide_columns(parts->p + n_rows * stride, parts->ds + n_rows * stride, columns.begin, end);
    for (int64_t row = 0; row < n_rows; row += WORD_ELEMENTS)
        words_of_pairs(parts, row, columns);
}

/* Makes zeros of the words that products take behind those of the block's rows. */
static inline void pad_words(const gradient_parts_t *parts, int64_t n_rows, int64_t n_columns) {
    const size_t bytes = (size_t)n_columns * sizeof(float);
    for (int64_t r = count_words(n_rows); r < product_words(n_rows); r++) {
        memset(parts->p_across + r * parts->s_stride, 0, bytes);
        memset(parts->ds_across + r * parts->s_stride, 0, bytes);
    }
}

/* ---- Columns that all rows see ---- */

/* Says whether some columns are as many as PAIR_COLUMNS, each row sees all of them, and nothing but
 * the scale comes between the products and P. Words of two rows also need whole pairs of rows, and
 * products that do not ask what is hidden (multiply_seen()). */
static inline bool is_plain(const gradient_parts_t *parts, const gradient_pair_t *pair,
                            flash_range_t columns) {
    const softmax_rule_t *rule = &pair->rule;
    const gradient_block_t *rows = pair->rows;
    const bool has_words = rows->seen.n_rows % WORD_ELEMENTS == 0 && rows->q.finite &&
                           rows->d_o.finite && parts->k.finite;
    return columns.end - columns.begin == PAIR_COLUMNS && all_see(pair, columns) && !rule->drops &&
           rule->softcap == 0 && !rule->has_bias && (WORD_ELEMENTS == 1 || has_words);
}

ALWAYS_INLINE row_terms_t plain_terms(const gradient_pair_t *pair, int64_t row) {
    return row_terms(pair->rule.softmax_scale, pair->rows->log_sum[row], pair->rows->d[row]);
}

/* Turns PAIR_COLUMNS scores of a row into P and dP into dS where they lie. */
ALWAYS_INLINE void plain_row(const gradient_parts_t *parts, const gradient_pair_t *pair,
                             int64_t row, int64_t column) {
    const row_terms_t terms = plain_terms(pair, row);
    const int64_t at = row * parts->s_stride + column;
    scores_to_gradients(&terms, parts->p + at, parts->ds + at, PAIR_COLUMNS);
}

/* Turns PAIR_COLUMNS scores of two rows into words of P, and dP into words of dS, which begin at a
 * column. Scores and dP lie from column 0 on, in the caches where those of other columns were. */
ALWAYS_INLINE void plain_words(const gradient_parts_t *parts, const gradient_pair_t *pair,
                               int64_t row, int64_t column) {
    const row_terms_t terms[2] = {plain_terms(pair, row), plain_terms(pair, row + 1)};
    for (int64_t first = 0; first < PAIR_COLUMNS; first += 2 * VEC_WIDTH) {
        weights_t rows[2][2];
        for (int i = 0; i < 4; i++) {
            const int64_t at = (row + i / 2) * parts->s_stride + first + i % 2 * VEC_WIDTH;
            rows[i / 2][i % 2] = weights_of(&terms[i / 2], parts->p + at, parts->ds + at);
        }
        store_words(parts, row, column + first, rows);
    }
}

NEVER_INLINE void plain_gradients(const gradient_parts_t *parts, const gradient_pair_t *pair,
                                  int64_t column) {
    for (int64_t row = 0; row < pair->rows->seen.n_rows; row += WORD_ELEMENTS) {
        if (WORD_ELEMENTS == 1)
            plain_row(parts, pair, row, column);
        else
            plain_words(parts, pair, row, column);
    }
}

#endif
