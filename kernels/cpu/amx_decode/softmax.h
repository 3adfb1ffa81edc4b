/*
 * This file turns a block's scores into P, relative to a reference maximum (amx/softmax.h).
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_SOFTMAX_H
#define FLASH_KERNELS_CPU_AMX_DECODE_SOFTMAX_H

#include "cpu/amx/softmax.h"
#include "cpu/amx_decode/scores.h"

#include <math.h>

/* Returns x with its lanes rotated: lane i is lane i + by of x. */
ALWAYS_INLINE vec_t rotate_lanes(vec_t x, int by) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(by)), x);
}

/* Returns the largest lane of each row in all of the row's lanes; rows_sum() their sum. */
ALWAYS_INLINE vec_t rows_max(vec_t x, int R) {
    for (int by = R; by < VEC_WIDTH; by *= 2)
        x = vec_max(x, rotate_lanes(x, by));
    return x;
}

ALWAYS_INLINE vec_t rows_sum(vec_t x, int R) {
    for (int by = R; by < VEC_WIDTH; by *= 2)
        x = vec_add(x, rotate_lanes(x, by));
    return x;
}

/* Makes pairs of words i and i + R of each 2 R. */
ALWAYS_INLINE words_t pair_keys(words_t x, int R) {
    uint16_t from[32];
    UNROLL for (int i = 0; i < 16; i++) {
        from[2 * i] = (uint16_t)(i / R * 2 * R + i % R);
        from[2 * i + 1] = (uint16_t)(from[2 * i] + R);
    }
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(from), x);
}

/* Computes P of the block, [16][R] pairs of keys, and prefetches the rest of the next block, unless
 * it is NULL. Returns the sum for each lane. */
ALWAYS_INLINE vec_t decode_exponentiate(const decode_scratch_t *t, const decode_keys_t *next,
                                        vec_t scale, vec_t reference, int R, words_t p[16]) {
    vec_t sum = vec_zero();
    UNROLL for (int i = 0; i < R; i++) {
        vec_t e[2];
        if (next)
            decode_prefetch_rest(t, next, i, R);
        UNROLL for (int j = 0; j < 2; j++) {
            const vec_t s = _mm512_load_ps(t->s + (2 * i + j) * VEC_WIDTH);
            e[j] = amx_exp2(_mm512_fmsub_ps(s, scale, reference));
            sum = vec_add(sum, e[j]);
        }
        p[i] = pair_keys(words_from_floats(e[0], e[1]), R);
    }
    return sum;
}

/* Raises the reference maximum of rows with scores far beyond it, or with none yet, and rescales
 * what was summed so far. NaN counts as such a score, and stays. */
NEVER_INLINE void decode_raise(const decode_scratch_t *t, int64_t head, vec_t block_sum,
                               vec_t scale, int R) {
    float *o = t->o + head * t->d_v * R;
    const vec_t old = _mm512_load_ps(t->reference + head * 16);
    const __mmask16 lanes = _mm512_cmp_ps_mask(block_sum, vec_set1(SUM_MAX), _CMP_NLE_UQ);
    const vec_t whole_rows = rows_max(_mm512_maskz_mov_ps(lanes, vec_set1(1)), R);
    const __mmask16 raised = _mm512_cmp_ps_mask(whole_rows, vec_zero(), _CMP_NEQ_OQ);
    vec_t new = vec_set1(-INFINITY);
    for (int i = 0; i < 2 * R; i++)
        new = vec_max(new, _mm512_load_ps(t->s + i * VEC_WIDTH));
    new = vec_mul(rows_max(new, R), scale);
    new = _mm512_mask_mov_ps(new, nothing_seen(new), vec_zero());
    new = _mm512_mask_mov_ps(old, raised, new);
    const vec_t factor =
        _mm512_mask_mov_ps(vec_exp2(vec_sub(old, new)), nothing_seen(old), vec_zero());
    float factors[16];
    _mm512_storeu_ps(factors, factor);
    _mm512_store_ps(t->reference + head * 16, new);
    _mm512_store_ps(t->sum + head * 16, vec_mul(_mm512_load_ps(t->sum + head * 16), factor));
    for (int64_t i = 0; nothing_seen(old) != 0xffff && i < 2 * t->v_columns * R; i++) {
        float *part = o + i * VEC_WIDTH;
        _mm512_store_ps(part, vec_mul(_mm512_load_ps(part), vec_set1(factors[i % R])));
    }
}

/* Returns the lanes of two vectors with even or with odd numbers. */
ALWAYS_INLINE words_t every_other(words_t a, words_t b, int odd) {
    const words_t even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(odd)), b);
}

/* Stores P row by row, as tile products take it. Splitting off every other row again and again
 * leaves row r at the index that has r's bits in reverse order. */
ALWAYS_INLINE void decode_store_p(words_t x[16], uint16_t *p, int R) {
    const words_t low = _mm512_set1_epi32(0xffff);
    words_t y[16];
    for (int n = R; n > 1; n /= 2) {
        UNROLL for (int i = 0; i < R / 2; i++) {
            const int group = i / (n / 2) * n, at = i % (n / 2);
            y[group + at] = every_other(x[group + 2 * at], x[group + 2 * at + 1], 0);
            y[group + n / 2 + at] = every_other(x[group + 2 * at], x[group + 2 * at + 1], 1);
        }
        UNROLL for (int i = 0; i < R; i++) x[i] = y[i];
    }
    UNROLL for (int i = 0; i < R; i++) {
        int row = 0;
        for (int bit = 1; bit < R; bit *= 2)
            row = row * 2 + ((i & bit) != 0);
        uint16_t *first = p + row * AMX_SQUARE, *last = first + 2 * R * AMX_SQUARE;
        _mm512_store_si512(first, _mm512_and_si512(x[i], low));
        _mm512_store_si512(first + R * AMX_SQUARE, _mm512_slli_epi32(x[i], 16));
        _mm512_store_si512(last, _mm512_srli_epi32(x[i], 16));
        _mm512_store_si512(last + R * AMX_SQUARE, _mm512_andnot_si512(low, x[i]));
    }
}

ALWAYS_INLINE void decode_softmax(const decode_scratch_t *t, const decode_keys_t *next,
                                  int64_t head, vec_t scale, int R) {
    words_t p[16];
    vec_t sum = decode_exponentiate(t, next, scale, _mm512_load_ps(t->reference + head * 16), R, p);
    if (_mm512_cmp_ps_mask(sum, vec_set1(SUM_MAX), _CMP_NLE_UQ) != 0) {
        decode_raise(t, head, sum, scale, R);
        sum = decode_exponentiate(t, NULL, scale, _mm512_load_ps(t->reference + head * 16), R, p);
    }
    float *total = t->sum + head * 16;
    _mm512_store_ps(total, vec_add(_mm512_load_ps(total), sum));
    decode_store_p(p, t->p, R);
}

#endif
