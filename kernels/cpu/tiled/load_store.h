/*
 * This file is the first and the last step of a tiled kernel: it loads rows of Q into scratch
 * memory, and stores rows of O.
 */
#ifndef FLASH_KERNELS_CPU_TILED_LOAD_STORE_H
#define FLASH_KERNELS_CPU_TILED_LOAD_STORE_H

#include "cpu/row_cursor.h"
#include "cpu/sink.h"
#include "cpu/tiled/e4m3.h"
#include "cpu/tiled/pairs.h"
#include "cpu/tiled/scratch.h"
#include "cpu/tiled/softmax.h"
#include "cpu/tiled/types.h"
#include "cpu/vector.h"

#include <math.h>
#include <string.h>

/* ---- Before the first block ---- */

/* Fills begin and end of each row. Returns the keys that any row sees, which are consecutive. */
static inline flash_range_t find_keys(const tile_scratch_t *t, const flash_params_t *p,
                                      const cpu_task_t *task) {
    flash_range_t all = {INT32_MAX, 0};
    cpu_row_t row = cpu_row(p, task, 0);
    for (int64_t r = 0; r < t->n_rows; r++, row = cpu_next_row(p, task, row)) {
        const flash_range_t keys = cpu_row_keys(p, task, row);
        t->begin[r] = keys.begin;
        t->end[r] = keys.end;
        if (keys.begin < keys.end) {
            all.begin = min32(all.begin, keys.begin);
            all.end = max32(all.end, keys.end);
        }
    }
    return all;
}

/* Loads columns of a row in the order in which load_pair() leaves them. */
ALWAYS_INLINE void gather_paired(const tile_scratch_t *t, int32_t dtype, const void *row,
                                 float *q) {
    int64_t i = 0;
    for (; t->d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
        vec_t pair[2];
        load_pair(dtype, element_at(row, i, dtype), pair);
        vec_store(FLASH_DTYPE_FP32, q + i, pair[0]);
        vec_store(FLASH_DTYPE_FP32, q + i + VEC_WIDTH, pair[1]);
    }
    for (; i < t->d_pad; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, q + i, load_columns(dtype, row, i, t->d));
}

ALWAYS_INLINE void gather_words(const tile_scratch_t *t, int32_t dtype, const void *row, float *q) {
    for (int64_t i = 0; i < count_words(t->d); i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, q + i, words_load(dtype, row, i * WORD_ELEMENTS, t->d));
}

/* Loads rows of Q of 16 bits, of a type that is a constant at each call. paired: they will be
 * multiplied by keys in place of that type. Where the instruction set multiplies pairs, all rows
 * are words. */
ALWAYS_INLINE void gather_q_of(const tile_scratch_t *t, const flash_params_t *p,
                               const cpu_task_t *task, int32_t dtype, bool paired) {
    row_cursor_t rows = cursor_at_rows(p, task, dtype, t->d, p->q, &p->q_stride), prefetch = rows;
    for (int64_t r = 0; r < PREFETCH_QUERIES; r++)
        prefetch_next(&prefetch);
    for (int64_t r = 0; r < t->n_rows; r++) {
        const char *row = cursor_next(&rows);
        prefetch_next(&prefetch);
        if (paired && !VEC_DOTS_BF16)
            gather_paired(t, dtype, row, t->q + r * t->d_pad);
        else
            gather_words(t, dtype, row, t->q + r * t->d_pad);
    }
}

NEVER_INLINE void gather_fp16(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, bool paired) {
    gather_q_of(t, p, task, FLASH_DTYPE_FP16, paired);
}

NEVER_INLINE void gather_bf16(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, bool paired) {
    gather_q_of(t, p, task, FLASH_DTYPE_BF16, paired);
}

/* Loads rows of fp32 for keys of any type. paired: their columns come into the order in which
 * load_pair() leaves those of keys. */
NEVER_INLINE void gather_fp32(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, int32_t dtype, bool paired) {
    row_cursor_t rows = cursor_at_rows(p, task, FLASH_DTYPE_FP32, t->d, p->q, &p->q_stride);
    row_cursor_t prefetch = rows;
    for (int64_t r = 0; r < PREFETCH_QUERIES; r++)
        prefetch_next(&prefetch);
    for (int64_t r = 0; r < t->n_rows; r++) {
        float *q = t->q + r * t->d_pad;
        memcpy(q, cursor_next(&rows), (size_t)t->d * sizeof *q);
        memset(q + t->d, 0, (size_t)(t->d_pad - t->d) * sizeof *q);
        prefetch_next(&prefetch);
        for (int64_t i = 0; paired && t->d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH)
            order_as_pair(dtype, q + i);
    }
}

/* Loads rows of e4m3, each with its own scale. */
NEVER_INLINE void gather_e4m3(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task) {
    cpu_row_t row = cpu_row(p, task, 0);
    for (int64_t r = 0; r < t->n_rows; r++, row = cpu_next_row(p, task, row)) {
        const int64_t index = cpu_row_index(task, &p->q_stride, row);
        const void *codes = element_at(p->q, index, FLASH_DTYPE_E4M3);
        const vec_t unit = vec_set1(E4M3_UNIT), scale = vec_set1(cpu_q_scale(p, task, row));
        for (int64_t i = 0; i < t->d_pad; i += VEC_WIDTH) {
            const vec_t x = vec_mul(load_columns(FLASH_DTYPE_E4M3, codes, i, t->d), unit);
            vec_store(FLASH_DTYPE_FP32, t->q + r * t->d_pad + i, vec_mul(x, scale));
        }
    }
}

/* Loads rows of Q of a type that goes with keys of dtype. pairs: keys are in place and loaded by
 * load_pair(), otherwise packed or decoded; those of 8 bits keep their own order in all cases.
 * Families that multiply pairs of bf16 have no rows of fp32 (codegen/facts.py). */
static inline void gather_q(const tile_scratch_t *t, const flash_params_t *p,
                            const cpu_task_t *task, int32_t dtype, bool pairs) {
    const bool paired = pairs && !pairs_are_sorted(dtype);
    if (rows_are(p->q_dtype, FLASH_DTYPE_FP16))
        gather_fp16(t, p, task, paired && p->q_dtype == dtype);
    else if (rows_are(p->q_dtype, FLASH_DTYPE_BF16))
        gather_bf16(t, p, task, paired && p->q_dtype == dtype);
    else if (has_kernel_of(FLASH_DTYPE_E4M3) && p->q_dtype == FLASH_DTYPE_E4M3)
        gather_e4m3(t, p, task);
    else if (!VEC_DOTS_BF16)
        gather_fp32(t, p, task, dtype, paired);
    if (keys_are(dtype, FLASH_DTYPE_E4M3))
        e4m3_scale_q(t, p, task);
}

static inline void start_rows(const tile_scratch_t *t) {
    for (int64_t r = 0; r < t->n_rows; r++) {
        t->reference[r] = -INFINITY;
        t->has_totals[r] = false;
        vec_store(FLASH_DTYPE_FP32, t->sum + r * 16, vec_zero());
    }
    for (int64_t i = 0; i < t->n_rows * t->d_v_pad; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, t->o + i, vec_zero());
}

/* ---- During the blocks ---- */

/* These are the task's rows of O, a share of which is prefetched with each block of keys: without
 * that, stores would wait for one row after the other at the end. */
typedef struct results_prefetch {
    row_cursor_t rows;
    int64_t share;
} results_prefetch_t;

static inline results_prefetch_t results_prefetch(const tile_scratch_t *t, const flash_params_t *p,
                                                  const cpu_task_t *task, flash_range_t keys,
                                                  int32_t B_c) {
    const int64_t n_blocks = ((int64_t)keys.end - keys.begin + B_c - 1) / B_c;
    results_prefetch_t prefetch = {.share =
                                       n_blocks > 0 ? (t->n_rows + n_blocks - 1) / n_blocks : 0};
    if (!task->o_partial)
        prefetch.rows = cursor_at_rows(p, task, p->o_dtype, t->d_v, p->o, &p->o_stride);
    return prefetch;
}

ALWAYS_INLINE void prefetch_results(results_prefetch_t *prefetch) {
    for (int64_t i = 0; i < prefetch->share; i++)
        prefetch_next(&prefetch->rows);
}

/* ---- After the last block ---- */

ALWAYS_INLINE void store_row(const tile_scratch_t *t, int32_t dtype, int64_t row, float sum,
                             void *o, int64_t index) {
    const bool seen = sum != 0;
    const vec_t inverse = vec_set1(1 / sum);
    const float *from = t->o + row * t->d_v_pad;
    for (int64_t i = 0; i < t->d_v; i += VEC_WIDTH) {
        const vec_t x = vec_load(FLASH_DTYPE_FP32, from + i);
        const vec_t result = seen ? vec_mul(x, inverse) : vec_zero();
        void *to = element_at_mutable(o, index + i, dtype);
        if (t->d_v - i >= VEC_WIDTH)
            vec_store(dtype, to, result);
        else
            vec_store_first(dtype, to, result, (int)(t->d_v - i));
    }
}

typedef struct destination {
    void *data;
    int64_t index;
    int32_t dtype;
} destination_t;

static inline destination_t destination_of(const tile_scratch_t *t, const flash_params_t *p,
                                           const cpu_task_t *task, int64_t row, cpu_row_t r) {
    const destination_t partial = {task->o_partial, row * t->d_v, FLASH_DTYPE_FP32};
    if (task->o_partial)
        return partial;
    const destination_t o = {p->o, cpu_row_index(task, &p->o_stride, r), p->o_dtype};
    return o;
}

NEVER_INLINE void store_fp32(const tile_scratch_t *t, int64_t row, float sum, void *o,
                             int64_t index) {
    store_row(t, FLASH_DTYPE_FP32, row, sum, o, index);
}

NEVER_INLINE void store_fp16(const tile_scratch_t *t, int64_t row, float sum, void *o,
                             int64_t index) {
    store_row(t, FLASH_DTYPE_FP16, row, sum, o, index);
}

NEVER_INLINE void store_bf16(const tile_scratch_t *t, int64_t row, float sum, void *o,
                             int64_t index) {
    store_row(t, FLASH_DTYPE_BF16, row, sum, o, index);
}

static inline void store_row_to(const tile_scratch_t *t, int64_t row, float sum,
                                const destination_t *to) {
    if (rows_are(to->dtype, FLASH_DTYPE_FP32))
        store_fp32(t, row, sum, to->data, to->index);
    else if (rows_are(to->dtype, FLASH_DTYPE_FP16))
        store_fp16(t, row, sum, to->data, to->index);
    else if (rows_are(to->dtype, FLASH_DTYPE_BF16))
        store_bf16(t, row, sum, to->data, to->index);
}

static inline void store_rows(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, int32_t dtype) {
    const softmax_rule_t rule = softmax_rule(p);
    const float unit = rule.rewrites ? 1 : rule.softmax_scale;
    cpu_row_t r = cpu_row(p, task, 0);
    if (keys_are(dtype, FLASH_DTYPE_E4M3))
        e4m3_scale_o(t, p, task);
    for (int64_t row = 0; row < t->n_rows; row++, r = cpu_next_row(p, task, r)) {
        const float reference = t->reference[row] * unit, sink = cpu_row_sink(p, task, r);
        const float weights = vec_reduce_add(vec_load(FLASH_DTYPE_FP32, t->sum + row * 16));
        const float sum = sum_of_scaled(weights, reference);
        const destination_t to = destination_of(t, p, task, row, r);
        store_row_to(t, row, sum_with_sink(sum, sink, reference), &to);
        if (cpu_wants_lse(p, task))
            cpu_store_lse(p, task, row, r, row_lse(reference, sum));
    }
}

#endif
