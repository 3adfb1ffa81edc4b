/*
 * The first and the last step of an AMX task: what its rows see, rows of O out of scratch memory.
 */
#ifndef FLASH_KERNELS_CPU_AMX_LOAD_STORE_H
#define FLASH_KERNELS_CPU_AMX_LOAD_STORE_H

#include "cpu/amx/attend.h"

static inline void widen(flash_range_t *any, flash_range_t keys) {
    if (keys.begin >= keys.end)
        return;
    const bool first = any->begin >= any->end;
    any->begin = first ? keys.begin : min32(any->begin, keys.begin);
    any->end = first ? keys.end : max32(any->end, keys.end);
}

/* Fills begin and end of each row, and what each strip sees; returns what any row sees. Rows that
 * the last strip lacks see what its last row does. */
static inline flash_range_t find_strip_keys(const amx_scratch_t *t, const flash_params_t *p,
                                            const cpu_task_t *task,
                                            strip_keys_t strips[AMX_STRIPS_MAX]) {
    flash_range_t all = {0, 0}, keys = {0, 0};
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < t->n_strips * AMX_SQUARE; row++) {
        strip_keys_t *strip = &strips[row / AMX_SQUARE];
        if (row < t->n_rows) {
            keys = cpu_row_keys(p, task, r);
            r = cpu_next_row(p, task, r);
        }
        if (row % AMX_SQUARE == 0)
            *strip = (strip_keys_t){keys, keys};
        t->begin[row] = keys.begin;
        t->end[row] = keys.end;
        widen(&strip->any, keys);
        strip->common.begin = max32(strip->common.begin, keys.begin);
        strip->common.end = min32(strip->common.end, keys.end);
        widen(&all, keys);
    }
    return all;
}

/* O itself begins with the first item of each strip. */
static inline void start_results(const amx_scratch_t *t) {
    const lanes_t nothing = {{vec_set1(-INFINITY), vec_set1(-INFINITY)}};
    memset(t->sum, 0, (size_t)(t->n_strips * AMX_SQUARE) * sizeof *t->sum);
    for (int64_t strip = 0; strip < t->n_strips; strip++)
        set_maximum(t, strip, nothing);
}

/* ---- O ---- */

/* A quarter of a square of O^T, normalised and transposed; zeros where the row saw no key. */
ALWAYS_INLINE void quarter_load(const float *from, vec_t sum, vec_t quarter[16]) {
    const vec_t inverse = vec_div(vec_set1(1), sum);
    const __mmask16 seen = _mm512_cmp_ps_mask(sum, vec_zero(), _CMP_NEQ_UQ);
    for (int64_t i = 0; i < 16; i++)
        quarter[i] = _mm512_maskz_mul_ps(seen, _mm512_load_ps(from + i * AMX_SQUARE), inverse);
    vec_transpose(quarter);
}

ALWAYS_INLINE void quarter_store(float *to, const vec_t quarter[16]) {
    for (int64_t i = 0; i < 16; i++)
        _mm512_store_ps(result_row(to, i), quarter[i]);
}

/* Squares of a strip's O^T become squares of O, normalised. */
NEVER_INLINE void finish_strip(const amx_scratch_t *t, int64_t strip) {
    enum { RIGHT = VEC_WIDTH, BELOW = VEC_WIDTH * AMX_SQUARE };
    const lanes_t sum = lanes_load(t->sum, strip);
    for (int64_t c = 0; c < t->columns; c++) {
        float *o = t->o + (strip * t->columns + c) * AMX_OPERANDS;
        vec_t a[16], b[16];
        quarter_load(o, sum.half[0], a);
        quarter_store(o, a);
        quarter_load(o + BELOW + RIGHT, sum.half[1], a);
        quarter_store(o + BELOW + RIGHT, a);
        quarter_load(o + RIGHT, sum.half[1], a);
        quarter_load(o + BELOW, sum.half[0], b);
        quarter_store(o + BELOW, a);
        quarter_store(o + RIGHT, b);
    }
}

/* Elements of 16 bits leave a cache line at a time. */
ALWAYS_INLINE void store_o_row(const amx_scratch_t *t, int32_t dtype, int64_t row, void *o,
                               int64_t index) {
    float *strip = t->o + row / AMX_SQUARE * t->columns * AMX_OPERANDS;
    const float *from = result_row(strip, row % AMX_SQUARE);
    int64_t i = 0;
    for (; dtype != FLASH_DTYPE_FP32 && i + AMX_SQUARE <= t->d; i += AMX_SQUARE) {
        const float *part = from + i * AMX_SQUARE;
        const __m256i low = vec_to_halves(dtype, _mm512_load_ps(part));
        const __m256i high = vec_to_halves(dtype, _mm512_load_ps(part + VEC_WIDTH));
        _mm512_storeu_si512(element_at_mutable(o, index + i, dtype),
                            _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
    }
    for (; i < t->d; i += VEC_WIDTH) {
        const float *part = from + i / AMX_SQUARE * AMX_OPERANDS + i % AMX_SQUARE;
        void *to = element_at_mutable(o, index + i, dtype);
        if (t->d - i >= VEC_WIDTH)
            vec_store(dtype, to, _mm512_load_ps(part));
        else
            vec_store_first(dtype, to, _mm512_load_ps(part), (int)(t->d - i));
    }
}

ALWAYS_INLINE void store_results(const amx_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, int32_t dtype) {
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < t->n_rows; row++, r = cpu_next_row(p, task, r)) {
        if (row % AMX_SQUARE == 0)
            finish_strip(t, row / AMX_SQUARE);
        if (task->o_partial)
            store_o_row(t, FLASH_DTYPE_FP32, row, task->o_partial, row * t->d);
        else
            store_o_row(t, dtype, row, p->o, cpu_row_index(task, &p->o_stride, r));
        if (cpu_wants_lse(p, task))
            cpu_store_lse(p, task, row, r, row_lse(t->maximum[row], t->sum[row]));
    }
}

#endif
