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
    const int64_t n_rows = t->n_strips * AMX_SQUARE;
    memset(t->sum, 0, (size_t)n_rows * 64);
    memset(t->item_sum, 0, AMX_SQUARE * 64);
    for (int64_t row = 0; row < n_rows; row++)
        set_maximum(t, row, -INFINITY);
}

/* 16 elements of a row of O, times `factor`; zeros where the row saw no key. */
ALWAYS_INLINE vec_t o_part(const float *o, float sum, vec_t factor) {
    return sum != 0 ? vec_mul(_mm512_load_ps(o), factor) : vec_zero();
}

/* Elements of 16 bits leave a cache line at a time. */
ALWAYS_INLINE void store_o_row(const amx_scratch_t *t, int32_t dtype, int64_t row, float sum,
                               void *o, int64_t index) {
    const vec_t inverse = vec_set1(1 / sum);
    float *strip = t->o + row / AMX_SQUARE * t->columns * AMX_OPERANDS;
    const float *from = result_row(strip, row % AMX_SQUARE);
    int64_t i = 0;
    for (; dtype != FLASH_DTYPE_FP32 && i + AMX_SQUARE <= t->d; i += AMX_SQUARE) {
        const float *part = from + i * AMX_SQUARE;
        const __m256i low = vec_to_halves(dtype, o_part(part, sum, inverse));
        const __m256i high = vec_to_halves(dtype, o_part(part + VEC_WIDTH, sum, inverse));
        _mm512_storeu_si512(element_at_mutable(o, index + i, dtype),
                            _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
    }
    for (; i < t->d; i += VEC_WIDTH) {
        const float *part = from + i / AMX_SQUARE * AMX_OPERANDS + i % AMX_SQUARE;
        const vec_t x = o_part(part, sum, inverse);
        void *to = element_at_mutable(o, index + i, dtype);
        if (t->d - i >= VEC_WIDTH)
            vec_store(dtype, to, x);
        else
            vec_store_first(dtype, to, x, (int)(t->d - i));
    }
}

ALWAYS_INLINE void store_results(const amx_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, int32_t dtype) {
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < t->n_rows; row++, r = cpu_next_row(p, task, r)) {
        const float sum = vec_reduce_add(_mm512_load_ps(t->sum + row * 16));
        if (task->o_partial)
            store_o_row(t, FLASH_DTYPE_FP32, row, sum, task->o_partial, row * t->d);
        else
            store_o_row(t, dtype, row, sum, p->o, cpu_row_index(task, &p->o_stride, r));
        if (cpu_wants_lse(p, task))
            cpu_store_lse(p, task, row, r,
                          sum != 0 ? t->maximum[row] * LN_2 + logf(sum) : -INFINITY);
    }
}

#endif
