/*
 * Online softmax: each row of S becomes P, relative to the row's origin. That is the largest score
 * at an earlier time; it moves only when a score is far above it, so that O is rarely rescaled.
 */
#ifndef FLASH_KERNELS_CPU_TILED_SOFTMAX_H
#define FLASH_KERNELS_CPU_TILED_SOFTMAX_H

#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

#include <math.h>

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

/* s = softcap * tanh(s / softcap), in units of log2. */
static inline void cap_scores(float *s, int64_t begin, int64_t end, float softcap) {
    const vec_t cap = vec_set1(softcap);
    const vec_t to_log2 = vec_set1(LOG2_E);
    for (int64_t i = begin; i < end; i += VEC_WIDTH) {
        const vec_t capped =
            vec_mul(cap, vec_tanh(vec_div(vec_load(FLASH_DTYPE_FP32, s + i), cap)));
        vec_store(FLASH_DTYPE_FP32, s + i, vec_mul(capped, to_log2));
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
static inline void raise_origin(const tile_scratch_t *t, int64_t row, float origin) {
    const vec_t factors = vec_set1(exp2f(t->origin[row] - origin));
    float *o = t->o + row * t->d_pad, *sum = t->sum + row * 16;
    t->origin[row] = origin;
    vec_store(FLASH_DTYPE_FP32, sum, vec_mul(factors, vec_load(FLASH_DTYPE_FP32, sum)));
    for (int64_t i = 0; i < t->d_pad; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, o + i, vec_mul(factors, vec_load(FLASH_DTYPE_FP32, o + i)));
}

/* s = exp2(s - origin), which is added to the lanes' sums. */
static inline void exponentiate(float *s, int64_t begin, int64_t end, float origin, float *sums) {
    const vec_t origins = vec_set1(origin);
    vec_t sum = vec_load(FLASH_DTYPE_FP32, sums);
    for (int64_t i = begin; i < end; i += VEC_WIDTH) {
        const vec_t p = vec_exp2(vec_sub(vec_load(FLASH_DTYPE_FP32, s + i), origins));
        vec_store(FLASH_DTYPE_FP32, s + i, p);
        sum = vec_add(sum, p);
    }
    vec_store(FLASH_DTYPE_FP32, sums, sum);
}

/* Turns a row's scores into P over exactly the columns that it sees. */
static inline void softmax_row(const tile_scratch_t *t, flash_range_t columns, int64_t row,
                               float softcap) {
    if (columns.begin >= columns.end)
        return;
    float *s = t->s + row * t->c_pad;
    const int64_t first = columns.begin / VEC_WIDTH * VEC_WIDTH;
    const int64_t last = round_up(columns.end, VEC_WIDTH);
    if (softcap != 0)
        cap_scores(s, first, last, softcap);
    hide_rest(s, first, columns.begin, columns.end, last);
    const vec_t largest = largest_scores(s, first, last);
    if (vec_any_less(vec_set1(t->origin[row] + ORIGIN_SLACK), largest))
        raise_origin(t, row, vec_reduce_max(largest));
    const float origin = t->origin[row] == -INFINITY ? 0 : t->origin[row];
    exponentiate(s, first, last, origin, t->sum + row * 16);
}

static inline void softmax(const tile_scratch_t *t, flash_range_t block, float softcap) {
    for (int64_t row = 0; row < t->n_rows; row++)
        softmax_row(t, row_columns(t, block, row), row, softcap);
}

#endif
