/*
 * ALiBi and masks join scores of a task that decodes, and blocks that a mask hides are found.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_BIAS_H
#define FLASH_KERNELS_CPU_AMX_DECODE_BIAS_H

#include "cpu/amx/bias.h"
#include "cpu/amx_decode/rows.h"

#include <math.h>

/* Returns what joins the scores of a row and 16 keys from `key` on. */
static inline vec_t bias_of_keys(const flash_bias_t *bias, const flash_bias_row_t *row,
                                 int32_t key) {
    const vec_t mask = bias->mask == NULL ? vec_zero() : mask_of_keys(bias, row, key);
    if (row->slope == 0)
        return mask;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i distance = _mm512_add_epi32(_mm512_set1_epi32(key - row->diagonal), lanes);
    return vec_fma(vec_set1(-row->slope), _mm512_cvtepi32_ps(_mm512_abs_epi32(distance)), mask);
}

/* Returns where lanes of vector i of a block's scores find what joins them in [rows][32 keys]. */
ALWAYS_INLINE __m512i place_of_scores(int i, int R) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(i * VEC_WIDTH));
    const unsigned log2_R = R == 4 ? 2 : R == 8 ? 3 : 4;
    const __m512i row = _mm512_and_si512(at, _mm512_set1_epi32(R - 1));
    const __m512i pair = _mm512_srli_epi32(at, log2_R + 1);
    const __m512i half = _mm512_and_si512(_mm512_srli_epi32(at, log2_R), _mm512_set1_epi32(1));
    const __m512i key = _mm512_add_epi32(pair, _mm512_slli_epi32(half, 4));
    return _mm512_add_epi32(_mm512_slli_epi32(row, 5), key);
}

/* Adds what joins scores of a head and the block that begins at `key`. */
NEVER_INLINE void decode_add_bias(const decode_scratch_t *t, const flash_bias_t *bias, int64_t head,
                                  int32_t key, int R) {
    const flash_bias_row_t *rows = t->bias_rows + head * R;
    float added[AMX_DECODE_MAX_ROWS][AMX_SQUARE] = {{0}};
    for (int64_t row = 0; row < t->n_rows; row++) {
        vec_store(FLASH_DTYPE_FP32, added[row], bias_of_keys(bias, &rows[row], key));
        vec_store(FLASH_DTYPE_FP32, added[row] + VEC_WIDTH,
                  bias_of_keys(bias, &rows[row], key + VEC_WIDTH));
    }
    for (int i = 0; i < 2 * R; i++) {
        float *s = t->s + i * VEC_WIDTH;
        const vec_t of_scores = _mm512_i32gather_ps(place_of_scores(i, R), added[0], 4);
        _mm512_store_ps(s, biased_scores(_mm512_load_ps(s), of_scores));
    }
}

/* Says whether the mask hides all that the rows of a head see of the block. */
NEVER_INLINE bool decode_hides(const decode_scratch_t *t, const flash_bias_t *bias,
                               const decode_rows_t *rows, int64_t head, flash_range_t block,
                               int R) {
    for (int64_t row = 0; row < t->n_rows; row++) {
        const flash_range_t seen = {max32(rows->row[row].begin, block.begin),
                                    min32(rows->row[row].end, block.end)};
        if (cpu_mask_shows(bias, &t->bias_rows[head * R + row], seen))
            return false;
    }
    return true;
}

#endif
