/*
 * This file computes P and dS of a block of rows and a block of keys:
 *
 *     S = Q K^T, dP = dO V^T, P = exp(S - log_sum), dS = P (dP - D)
 *
 * with the scale, softcap and bias of the forward pass. With dropout P and dP are multiplied by
 * what weights are, but P in dS is not. Where a row does not see a key P is HIDDEN and dS is 0,
 * whatever Q, K, V and dO hold there. Where products take words of bf16, P and dS are rounded then.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_SCORES_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_SCORES_H

#include "cpu/tiled/bias.h"
#include "cpu/tiled/gradient_weights.h"
#include "cpu/tiled/multiply.h"
#include "cpu/tiled/pack.h"
#include "cpu/tiled/prefetch_run.h"

/* ---- Products of a row and a key ---- */

/* This is C = A B with A a block of rows, and B panels of keys. */
typedef struct pair_product {
    const word_rows_t *a;
    const float *panels;
    float *c;
    prefetch_run_t prefetch;
    int64_t origin; /* the block's column that column 0 of C is */
} pair_product_t;

/* Computes a tile of rows and the keys of one panel that any of the rows sees. */
static inline void multiply_pairs_tile(const gradient_parts_t *parts, const gradient_pair_t *pair,
                                       pair_product_t *of, int64_t panel_begin, int64_t row,
                                       int rows) {
    const int64_t depth = product_words(of->a->columns);
    const panel_t panel = panel_of(panel_begin, depth, parts->c_pad);
    const flash_range_t any = seen_columns(pair, row, rows);
    const int64_t begin = any.begin > panel_begin ? any.begin / VEC_WIDTH * VEC_WIDTH : panel_begin;
    const int64_t end = min64(panel_begin + panel.width, any.end);
    if (begin >= end)
        return;
    const float *data = of->panels + panel.offset;
    const int64_t vecs = (end - begin + VEC_WIDTH - 1) / VEC_WIDTH;
    const tile_product_t product = {
        .a = of->a->along + row * of->a->along_stride,
        .a_stride = of->a->along_stride,
        .a_step = 1,
        .b = data + (begin - panel_begin),
        .b_stride = panel.width,
        .c = of->c + row * parts->s_stride + begin - of->origin,
        .c_stride = parts->s_stride,
        .depth = depth,
        .accumulate = false,
        .prefetch = take_share(&of->prefetch, product_prefetch_bytes(depth, vecs))};
    multiply_words(&product, rows, (int)vecs);
}

/* Does so for all rows and the columns of whole panels, begin ... end - 1. */
static inline void multiply_pairs(const gradient_parts_t *parts, const gradient_pair_t *pair,
                                  pair_product_t *of, flash_range_t columns) {
    const int64_t n_rows = pair->rows->seen.n_rows;
    for (int64_t panel = columns.begin; panel < columns.end; panel += TILE_COLUMNS)
        for (int64_t row = 0; row < n_rows; row += PRODUCT_ROWS)
            multiply_pairs_tile(parts, pair, of, panel, row,
                                (int)min64(PRODUCT_ROWS, n_rows - row));
}

/* ---- P and dS ---- */

_Static_assert((int)PAIR_COLUMNS <= (int)KEPT_KEYS, "bits of dropout are found together");

/* Says how weights of a row are dropped. */
static inline dropping_t dropping_pairs(const gradient_pair_t *pair, int64_t row,
                                        kept_rows_t *kept) {
    const dropping_t dropping = {&pair->p->dropout,
                                 dropout_row_of(&pair->rows->seen, pair->p, &pair->rows->task, row),
                                 pair->keys.begin, kept};
    return dropping;
}

/* Caps scores, and multiplies dP - d by the derivative, 1 - tanh^2. A score far below the softcap
 * stays as it is, so that it is not lost among subnormal numbers. */
static inline void cap_row(float *s, float *dp, int64_t n, const softmax_rule_t *rule, float d) {
    const vec_t scale = vec_set1(rule->softmax_scale), cap = vec_set1(rule->softcap);
    const vec_t one = vec_set1(1), ds = vec_set1(d);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        const vec_t score = vec_mul(scale, vec_load(FLASH_DTYPE_FP32, s + i));
        const vec_t x = vec_div(score, cap), t = vec_tanh(x);
        const vec_t slope = vec_mul(vec_sub(one, t), vec_add(one, t));
        const vec_t above = vec_sub(vec_load(FLASH_DTYPE_FP32, dp + i), ds);
        vec_store(FLASH_DTYPE_FP32, s + i,
                  vec_select_less(vec_abs(x), vec_set1(0x1p-20f), score, vec_mul(cap, t)));
        vec_store(FLASH_DTYPE_FP32, dp + i, vec_mul(above, slope));
    }
}

/* Adds the bias to scores of the row, s[0] being that of the block's first key. */
static inline void bias_row(const gradient_pair_t *pair, int64_t row, flash_range_t columns,
                            float *s) {
    const flash_bias_row_t bias = bias_row_of(&pair->rows->seen, pair->p, &pair->rows->task, row);
    const key_scores_t scores = {s + columns.begin, pair->keys.begin + columns.begin,
                                 columns.end - columns.begin};
    add_bias(&pair->p->bias, &bias, &scores);
}

/* Scales and caps a row's scores, columns first ... first + n - 1, multiplies dP - D by the
 * derivative of the cap, and adds the row's bias. */
NEVER_INLINE void rewrite_pairs(const gradient_pair_t *pair, int64_t row, flash_range_t columns,
                                float *s, float *dp) {
    const int64_t first = columns.begin / VEC_WIDTH * VEC_WIDTH;
    const int64_t n = round_up(columns.end, VEC_WIDTH) - first;
    if (pair->rule.softcap != 0)
        cap_row(s + first, dp + first, n, &pair->rule, pair->rows->d[row]);
    else
        scale_sums(s + first, n, pair->rule.softmax_scale);
    if (pair->rule.has_bias)
        bias_row(pair, row, columns, s);
}

/* Computes P and dS of a row in some columns of the block: where the row sees keys, and hides the
 * others. */
ALWAYS_INLINE void gradient_row(const gradient_parts_t *parts, const gradient_pair_t *pair,
                                int64_t row, flash_range_t within, kept_rows_t *kept_rows) {
    const softmax_rule_t *rule = &pair->rule;
    const bool caps = rule->softcap != 0, rewrites = caps || rule->has_bias;
    float *s = parts->p + row * parts->s_stride, *dp = parts->ds + row * parts->s_stride;
    dropping_t dropping;
    kept_keys_t own;
    const kept_keys_t *kept = NULL;
    flash_range_t columns = row_columns(&pair->rows->seen, pair->keys, row);
    columns.begin = max32(columns.begin, within.begin);
    columns.end = min32(columns.end, within.end);
    if (columns.begin >= columns.end) {
        hide_columns(s, dp, within.begin, within.end);
        return;
    }
    const int64_t first = columns.begin / VEC_WIDTH * VEC_WIDTH;
    const int64_t last = round_up(columns.end, VEC_WIDTH);
    if (rule->drops) { /* P, which dS has undropped, is multiplied later */
        dropping = dropping_pairs(pair, row, kept_rows);
        kept = find_kept(dropping.dropout, &dropping.row, dropping.key + first, dropping.key + last,
                         kept_rows, &own);
        multiply_by_factors(dp, first, last, kept, &dropping);
    }
    if (rewrites)
        rewrite_pairs(pair, row, columns, s, dp);
    const row_terms_t terms = row_terms(rewrites ? 1 : rule->softmax_scale,
                                        pair->rows->log_sum[row], caps ? 0 : pair->rows->d[row]);
    scores_to_gradients(&terms, s + first, dp + first, last - first);
    if (rule->drops)
        multiply_by_factors(s, first, last, kept, &dropping);
    hide_columns(s, dp, within.begin, columns.begin);
    hide_columns(s, dp, columns.end, within.end);
}

/* ---- A block ---- */

NEVER_INLINE void gradient_scores(const gradient_parts_t *parts, const gradient_pair_t *pair) {
    pair_product_t s = {&pair->rows->q, parts->k_panels, parts->p,
                        rows_behind(&pair->rows->q, pair->rows), 0};
    pair_product_t dp = {&pair->rows->d_o, parts->v_panels, parts->ds,
                         rows_behind(&pair->rows->d_o, pair->rows), 0};
    const int32_t n_columns = pair->keys.end - pair->keys.begin;
    kept_rows_t kept;
    if (pair->rule.drops)
        start_kept_rows(&kept);
    for (int32_t begin = 0; begin < n_columns; begin += PAIR_COLUMNS) {
        const flash_range_t columns = {begin, min32(begin + PAIR_COLUMNS, n_columns)};
        const bool plain = is_plain(parts, pair, columns);
        s.origin = dp.origin = plain && WORD_ELEMENTS > 1 ? begin : 0;
        multiply_pairs(parts, pair, &s, columns);
        multiply_pairs(parts, pair, &dp, columns);
        if (plain) {
            plain_gradients(parts, pair, begin);
            continue;
        }
        for (int64_t row = 0; row < pair->rows->seen.n_rows; row++)
            gradient_row(parts, pair, row, columns, &kept);
        finish_words(parts, pair->rows->seen.n_rows, columns);
    }
    pad_words(parts, pair->rows->seen.n_rows, n_columns);
}

#endif
