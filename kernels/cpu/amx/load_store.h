/*
 * This file finds what the rows of an AMX task see, at its beginning, and stores O at its end.
 */
#ifndef FLASH_KERNELS_CPU_AMX_LOAD_STORE_H
#define FLASH_KERNELS_CPU_AMX_LOAD_STORE_H

#include "cpu/amx/attend.h"
#include "cpu/sink.h"

ALWAYS_INLINE strip_keys_t keys_of_strip(const amx_scratch_t *t, int64_t strip) {
    strip_keys_t keys = {{INT32_MAX, 0}, {0, INT32_MAX}};
    for (int64_t row = strip * AMX_SQUARE; row < (strip + 1) * AMX_SQUARE; row += VEC_WIDTH) {
        const __m512i begin = _mm512_load_si512(t->begin + row);
        const __m512i end = _mm512_load_si512(t->end + row);
        const __mmask16 sees = _mm512_cmplt_epi32_mask(begin, end);
        keys.any.begin = min32(keys.any.begin, _mm512_mask_reduce_min_epi32(sees, begin));
        keys.any.end = max32(keys.any.end, _mm512_mask_reduce_max_epi32(sees, end));
        keys.common.begin = max32(keys.common.begin, _mm512_reduce_max_epi32(begin));
        keys.common.end = min32(keys.common.end, _mm512_reduce_min_epi32(end));
    }
    return keys;
}

/* Fills the bias's row of each row. */
static inline void find_bias_rows_of_strips(const amx_scratch_t *t, const flash_params_t *p,
                                            const cpu_task_t *task) {
    find_bias_rows(p, task, t->n_rows, t->bias_rows);
    for (int64_t row = t->n_rows; row < t->n_strips * AMX_SQUARE; row++)
        t->bias_rows[row] = t->bias_rows[t->n_rows - 1];
}

/* Fills begin and end of each row, and what each strip sees. Returns what any row sees. Rows that
 * the last strip lacks see what its last row does. */
static inline flash_range_t find_strip_keys(const amx_scratch_t *t, const flash_params_t *p,
                                            const cpu_task_t *task,
                                            strip_keys_t strips[AMX_STRIPS_MAX]) {
    flash_range_t all = {INT32_MAX, 0}, keys = {0, 0};
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < t->n_strips * AMX_SQUARE; row++) {
        if (row < t->n_rows) {
            keys = cpu_row_keys(p, task, r);
            r = cpu_next_row(p, task, r);
        }
        t->begin[row] = keys.begin;
        t->end[row] = keys.end;
    }
    if (flash_has_bias(&p->bias))
        find_bias_rows_of_strips(t, p, task);
    for (int64_t strip = 0; strip < t->n_strips; strip++) {
        strips[strip] = keys_of_strip(t, strip);
        all.begin = min32(all.begin, strips[strip].any.begin);
        all.end = max32(all.end, strips[strip].any.end);
    }
    return all;
}

/* Starts the sums and maxima. O is started by the first item of each strip. */
static inline void start_results(const amx_scratch_t *t) {
    const lanes_t nothing = {{vec_set1(-INFINITY), vec_set1(-INFINITY)}};
    memset(t->sum, 0, (size_t)(t->n_strips * AMX_SQUARE) * sizeof *t->sum);
    for (int64_t strip = 0; strip < t->n_strips; strip++)
        set_maximum(t, strip, nothing);
}

/* ---- O ---- */

/* Returns 16 lanes of a row of O^T, normalised; zeros where a row of the task saw no key. */
ALWAYS_INLINE vec_t normalised(const float *from, vec_t sum, vec_t inverse) {
    const __mmask16 seen = _mm512_cmp_ps_mask(sum, vec_zero(), _CMP_NEQ_UQ);
    return _mm512_maskz_mul_ps(seen, _mm512_load_ps(from), inverse);
}

ALWAYS_INLINE words_t words_of(int32_t dtype, vec_t low, vec_t high) {
    DTYPES_KNOWN(7); /* nothing is stored in 8 bits */
    if (dtype == FLASH_DTYPE_BF16)
        return words_from_floats(low, high);
    return _mm512_inserti64x4(_mm512_castsi256_si512(vec_to_halves(dtype, low)),
                              vec_to_halves(dtype, high), 1);
}

/* Stores 16 rows of a square of O, of 32 elements of 16 bits each, from columns of O^T. */
ALWAYS_INLINE void finish_half(int32_t dtype, const float *from, vec_t sum, uint16_t *to) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i alternating = _mm512_or_si512(
        lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16)), 16));
    const vec_t inverse = vec_div(vec_set1(1), sum);
    vec_t pairs[16];
    for (int64_t i = 0; i < 16; i++, from += 2 * AMX_SQUARE) {
        const vec_t a = normalised(from, sum, inverse);
        const vec_t b = normalised(from + AMX_SQUARE, sum, inverse);
        pairs[i] =
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(alternating, words_of(dtype, a, b)));
    }
    vec_transpose(pairs);
    for (int64_t i = 0; i < 16; i++)
        _mm512_store_ps(to + i * AMX_SQUARE, pairs[i]);
}

/* Normalises and transposes the squares of a strip's O into t->rows, side by side. */
NEVER_INLINE void finish_strip(const amx_scratch_t *t, int32_t dtype, int64_t strip) {
    const lanes_t sum = lanes_load(t->sum, strip);
    const float *from = t->o + strip * t->v_columns * AMX_OPERANDS;
    for (int64_t i = 0; i < t->v_columns * AMX_OPERANDS; i += AMX_OPERANDS)
        for (int64_t half = 0; half < 2; half++)
            finish_half(dtype, from + i + half * VEC_WIDTH, sum.half[half],
                        t->rows + i + half * (AMX_OPERANDS / 2));
}

/* Stores the first n rows of a strip in fp32. */
NEVER_INLINE void store_fp32_strip(const amx_scratch_t *t, int64_t strip, int64_t n,
                                   char *const rows[AMX_SQUARE]) {
    const lanes_t sum = lanes_load(t->sum, strip);
    const float *from = t->o + strip * t->v_columns * AMX_OPERANDS;
    for (int64_t c = 0; c < t->d_v; c += VEC_WIDTH, from += VEC_WIDTH * AMX_SQUARE)
        for (int64_t first = 0; first < n; first += VEC_WIDTH) {
            const vec_t of_rows = sum.half[first / VEC_WIDTH];
            const vec_t inverse = vec_div(vec_set1(1), of_rows);
            vec_t tile[16];
            for (int64_t i = 0; i < 16; i++)
                tile[i] = normalised(from + i * AMX_SQUARE + first, of_rows, inverse);
            vec_transpose(tile);
            for (int64_t i = 0; i < min64(n - first, 16); i++)
                _mm512_mask_storeu_ps(rows[first + i] + c * (int64_t)sizeof(float),
                                      (__mmask16)present(c, t->d_v), tile[i]);
        }
}

/* Finds where the first n rows of a strip of fp32 go, from row r on: to partials or to O. */
static inline void find_fp32_rows(const flash_params_t *p, const cpu_task_t *task, int64_t strip,
                                  int64_t n, cpu_row_t r, char *rows[AMX_SQUARE]) {
    for (int64_t i = 0; i < n; i++, r = cpu_next_row(p, task, r))
        rows[i] =
            task->o_partial
                ? (char *)(task->o_partial + (strip * AMX_SQUARE + i) * p->d_head_v)
                : element_at_mutable(p->o, cpu_row_index(task, &p->o_stride, r), FLASH_DTYPE_FP32);
}

ALWAYS_INLINE void store_o_row(const amx_scratch_t *t, int64_t i, uint16_t *o) {
    const uint16_t *from = t->rows + i * AMX_SQUARE;
    for (int64_t c = 0; c < t->d_v; c += AMX_SQUARE, from += AMX_OPERANDS)
        _mm512_mask_storeu_epi16(o + c, present(c, t->d_v), _mm512_load_si512(from));
}

ALWAYS_INLINE void store_strip(const amx_scratch_t *t, const flash_params_t *p,
                               const cpu_task_t *task, int32_t dtype, int64_t strip,
                               cpu_row_t first) {
    const int64_t n = min64(t->n_rows - strip * AMX_SQUARE, AMX_SQUARE);
    if (task->o_partial || p->o_dtype == FLASH_DTYPE_FP32) {
        char *rows[AMX_SQUARE];
        find_fp32_rows(p, task, strip, n, first, rows);
        store_fp32_strip(t, strip, n, rows);
        return;
    }
    finish_strip(t, dtype, strip);
    for (int64_t i = 0; i < n; i++, first = cpu_next_row(p, task, first)) {
        const int64_t index = cpu_row_index(task, &p->o_stride, first);
        store_o_row(t, i, element_at_mutable(p->o, index, dtype));
    }
}

/* Stores O and LSE. Sets bit r of bad[s] where row r of strip s is to be recomputed. */
ALWAYS_INLINE void store_results(const amx_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, int32_t dtype, uint32_t *bad) {
    cpu_row_t r = cpu_row(p, task, 0), first = r;
    for (int64_t row = 0; row < t->n_rows; row++) {
        const float reference = t->maximum[row] * LN_2;
        if (t->begin[row] < t->end[row] && !is_sound(t->sum[row]))
            bad[row / AMX_SQUARE] |= 1u << row % AMX_SQUARE;
        if (cpu_wants_lse(p, task))
            cpu_store_lse(p, task, row, r, row_lse(reference, t->sum[row]));
        t->sum[row] = sum_with_sink(t->sum[row], cpu_row_sink(p, task, r), reference);
        r = cpu_next_row(p, task, r);
        if ((row + 1) % AMX_SQUARE == 0 || row + 1 == t->n_rows) {
            store_strip(t, p, task, dtype, row / AMX_SQUARE, first);
            first = r;
        }
    }
}

#endif
