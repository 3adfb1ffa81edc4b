/*
 * Online softmax: each row of S becomes P, relative to the row's origin. That is the largest score
 * at an earlier time; it moves only when a score is far above it, so that O is rarely rescaled.
 */
#ifndef FLASH_KERNELS_CPU_TILED_SOFTMAX_H
#define FLASH_KERNELS_CPU_TILED_SOFTMAX_H

#include "cpu/tiled/scratch.h"
#include "cpu/tiled/words.h"
#include "cpu/vector.h"

#include <math.h>
#include <string.h>

/* How far above the origin a score may be, in units of log2: P stays far from overflow. */
static const float ORIGIN_SLACK = 8;

/* tanh: an odd polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel (Cephes tanhf). */
ALWAYS_INLINE vec_t vec_tanh(vec_t x) {
    const vec_t z = vec_mul(x, x);
    vec_t near = vec_set1(-5.70498872745e-3f);
    near = vec_fma(near, z, vec_set1(2.06390887954e-2f));
    near = vec_fma(near, z, vec_set1(-5.37397155531e-2f));
    near = vec_fma(near, z, vec_set1(1.33314422036e-1f));
    near = vec_fma(near, z, vec_set1(-3.33332819422e-1f));
    near = vec_fma(vec_mul(near, z), x, x);
    const vec_t one = vec_set1(1);
    const vec_t e_2x = vec_exp2(vec_mul(x, vec_set1(2 * LOG2_E)));
    const vec_t far = vec_sub(one, vec_div(vec_set1(2), vec_add(e_2x, one)));
    return vec_select_less(vec_abs(x), vec_set1(0.625f), near, far);
}

/* s = softcap * tanh(s * softmax_scale / softcap) of n scores, a multiple of VEC_WIDTH. */
NEVER_INLINE void cap_scores(float *s, int64_t n, float softmax_scale, float softcap) {
    const vec_t inner = vec_set1(softmax_scale / softcap), outer = vec_set1(softcap);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        const vec_t x = vec_mul(inner, vec_load(FLASH_DTYPE_FP32, s + i));
        vec_store(FLASH_DTYPE_FP32, s + i, vec_mul(outer, vec_tanh(x)));
    }
}

/* Hides what whole vectors hold beside the row's own scores, begin ... end - 1. */
static inline void hide_rest(float *s, int64_t first, int64_t begin, int64_t end, int64_t last) {
    for (int64_t i = first; i < begin; i++)
        s[i] = -INFINITY;
    for (int64_t i = end; i < last; i++)
        s[i] = -INFINITY;
}

/* The largest score of each lane. */
static inline vec_t largest_scores(const float *s, int64_t begin, int64_t end) {
    vec_t largest = vec_load(FLASH_DTYPE_FP32, s + begin);
    for (int64_t i = begin + VEC_WIDTH; i < end; i += VEC_WIDTH)
        largest = vec_max(largest, vec_load(FLASH_DTYPE_FP32, s + i));
    return largest;
}

/* The row's origin rises: what was summed so far counts less. */
NEVER_INLINE void raise_origin(const tile_scratch_t *t, int64_t row, float origin) {
    const vec_t factors = vec_set1(exp2f(t->origin[row] - origin));
    float *o = t->o + row * t->d_pad, *sum = t->sum + row * 16;
    t->origin[row] = origin;
    vec_store(FLASH_DTYPE_FP32, sum, vec_mul(factors, vec_load(FLASH_DTYPE_FP32, sum)));
    for (int64_t i = 0; i < t->d_pad; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, o + i, vec_mul(factors, vec_load(FLASH_DTYPE_FP32, o + i)));
}

/* What scores are multiplied by, after they are capped where they are, for units of log2. */
static inline float scores_to_log2(const flash_params_t *p) {
    return (p->softcap != 0 ? 1 : p->softmax_scale) * LOG2_E;
}

/* How scores become P. */
typedef struct softmax_rule {
    float softmax_scale;
    float softcap;
    float to_log2; /* scores_to_log2() */
} softmax_rule_t;

static inline softmax_rule_t softmax_rule(const flash_params_t *p) {
    const softmax_rule_t rule = {p->softmax_scale, p->softcap, scores_to_log2(p)};
    return rule;
}

/* P = exp2(s * to_log2 - origin), in words, which is added to the lanes' sums. Not in one rounding:
 * P of the origin's own score is 1. */
ALWAYS_INLINE void exponentiate(float *s, int64_t begin, int64_t end, const softmax_rule_t *rule,
                                float origin, float *sums) {
    const vec_t to_log2 = vec_set1(rule->to_log2), origins = vec_set1(origin);
    vec_t sum = vec_load(FLASH_DTYPE_FP32, sums);
    for (int64_t i = begin; i < end; i += VEC_WIDTH) {
        const vec_t x = vec_mul(vec_load(FLASH_DTYPE_FP32, s + i), to_log2);
        const vec_t p = vec_exp2(vec_sub(x, origins));
        words_store((char *)s + i * WORD_ELEMENT_SIZE, p);
        sum = vec_add(sum, p);
    }
    vec_store(FLASH_DTYPE_FP32, sums, sum);
}

/* Scores first ... last - 1 of a row, whole vectors, become P. */
ALWAYS_INLINE void scores_to_p(const tile_scratch_t *t, int64_t row, int64_t first, int64_t last,
                               const softmax_rule_t *rule) {
    float *s = t->s + row * t->c_pad;
    const vec_t largest = vec_mul(largest_scores(s, first, last), vec_set1(rule->to_log2));
    if (vec_any_less(vec_set1(t->origin[row] + ORIGIN_SLACK), largest))
        raise_origin(t, row, vec_reduce_max(largest));
    const float origin = t->origin[row] == -INFINITY ? 0 : t->origin[row];
    exponentiate(s, first, last, rule, origin, t->sum + row * 16);
}

/* P of columns begin ... end - 1 becomes 0. */
static inline void clear_p(float *s, int64_t begin, int64_t end) {
    if (begin < end)
        memset((char *)s + begin * WORD_ELEMENT_SIZE, 0,
               (size_t)((end - begin) * WORD_ELEMENT_SIZE));
}

/* Turns a row's scores into P over exactly the columns that it sees, and zeros beside them, of
 * n_columns. */
ALWAYS_INLINE void softmax_row(const tile_scratch_t *t, flash_range_t columns, int64_t row,
                               const softmax_rule_t *rule, int64_t n_columns) {
    float *s = t->s + row * t->c_pad;
    const int64_t first = columns.begin / VEC_WIDTH * VEC_WIDTH;
    const int64_t last = round_up(columns.end, VEC_WIDTH);
    if (columns.begin >= columns.end) {
        clear_p(s, 0, n_columns);
        return;
    }
    if (rule->softcap != 0)
        cap_scores(s + first, last - first, rule->softmax_scale, rule->softcap);
    hide_rest(s, first, columns.begin, columns.end, last);
    scores_to_p(t, row, first, last, rule);
    clear_p(s, 0, first);
    clear_p(s, last, n_columns);
}

ALWAYS_INLINE void softmax(const tile_scratch_t *t, flash_range_t block, const flash_params_t *p) {
    const softmax_rule_t rule = softmax_rule(p);
    const int64_t n_columns = round_up(block.end - block.begin, WORD_ELEMENTS);
    for (int64_t row = 0; row < t->n_rows; row++)
        softmax_row(t, row_columns(t, block, row), row, &rule, n_columns);
}

#endif
