/*
 * This file loads what gradients of a block need: rows of Q and dO, with D and the logarithm of
 * their sums, or keys, packed for the products.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_GATHER_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_GATHER_H

#include "common/gradients.h"
#include "cpu/gradient_parts.h"
#include "cpu/row_cursor.h"
#include "cpu/tiled/pack.h"

/* Loads rows of a type that is a constant at each call. */
ALWAYS_INLINE void load_rows_of(int32_t dtype, row_cursor_t rows, fp32_rows_t *to) {
    finite_t finite = {{vec_zero(), vec_zero()}};
    row_cursor_t prefetch = rows;
    float *row_to = to->data;
    for (int64_t r = 0; r < PREFETCH_QUERIES; r++)
        prefetch_next(&prefetch);
    for (const char *row = cursor_next(&rows); row; row = cursor_next(&rows)) {
        prefetch_next(&prefetch);
        for (int64_t i = 0; i < to->columns; i += VEC_WIDTH) {
            const vec_t x = load_columns(dtype, row, i, to->columns);
            vec_store(FLASH_DTYPE_FP32, row_to + i, x);
            note_words(&finite, x);
        }
        row_to += to->stride;
    }
    to->finite = is_finite(&finite);
}

NEVER_INLINE void load_rows_fp32(row_cursor_t rows, fp32_rows_t *to) {
    load_rows_of(FLASH_DTYPE_FP32, rows, to);
}

NEVER_INLINE void load_rows_fp16(row_cursor_t rows, fp32_rows_t *to) {
    load_rows_of(FLASH_DTYPE_FP16, rows, to);
}

NEVER_INLINE void load_rows_bf16(row_cursor_t rows, fp32_rows_t *to) {
    load_rows_of(FLASH_DTYPE_BF16, rows, to);
}

static inline void load_rows(int32_t dtype, row_cursor_t rows, fp32_rows_t *to) {
    if (dtype == FLASH_DTYPE_FP32)
        load_rows_fp32(rows, to);
    else if (dtype == FLASH_DTYPE_FP16)
        load_rows_fp16(rows, to);
    else
        load_rows_bf16(rows, to);
}

/* ---- Rows of Q ---- */

/* A block of rows of those that a task has room for: a task with the same rows, and what gradients
 * need of them. */
typedef struct gradient_block {
    cpu_task_t task;
    fp32_rows_t q;
    fp32_rows_t d_o;
    const float *log_sum;
    const float *d;
    tile_scratch_t seen; /* of this only what says which keys a row sees */
} gradient_block_t;

/* Makes rows `row` ... of those that there is room for the block of a task. */
static inline gradient_block_t block_of_rows(const gradient_rows_t *rows, const cpu_task_t *task,
                                             int64_t row, int32_t B_r) {
    gradient_block_t block = {.task = *task, .q = rows->q, .d_o = rows->d_o};
    block.q.data += row * rows->q.stride;
    block.d_o.data += row * rows->d_o.stride;
    block.q.finite = rows->q_is_finite[row / B_r] != 0;
    block.d_o.finite = rows->d_o_is_finite[row / B_r] != 0;
    block.log_sum = rows->log_sum + row;
    block.d = rows->d + row;
    block.seen.begin = rows->begin + row;
    block.seen.end = rows->end + row;
    block.seen.n_rows = block.seen.head_rows = task->row_end - task->row_begin;
    return block;
}

/* Loads the rows of a task, a block, to rows `row` ... of those that there is room for. */
static inline void load_block(const gradient_rows_t *rows, const flash_params_t *p,
                              const flash_gradients_t *g, const cpu_task_t *task, int64_t row,
                              int32_t B_r) {
    gradient_block_t block = block_of_rows(rows, task, row, B_r);
    cpu_row_t r = cpu_row(p, task, 0);
    load_rows(p->q_dtype, cursor_at_rows(p, task, p->q_dtype, p->d_head, p->q, &p->q_stride),
              &block.q);
    load_rows(p->o_dtype, cursor_at_rows(p, task, p->o_dtype, p->d_head_v, g->d_o, &g->d_o_stride),
              &block.d_o);
    rows->q_is_finite[row / B_r] = block.q.finite;
    rows->d_o_is_finite[row / B_r] = block.d_o.finite;
    for (int64_t i = row; i < row + block.seen.n_rows; i++, r = cpu_next_row(p, task, r)) {
        const int64_t at =
            flash_row_index(p, g, &task->sequence, task->batch_index, r.head, r.query);
        rows->log_sum[i] = g->row_log_sum[at];
        rows->d[i] = g->row_d[at];
    }
}

/* ---- Keys ---- */

/* Packs rows transposed. */
static inline void pack_transposed(const fp32_rows_t *rows, int64_t n, int64_t c_pad,
                                   float *panels) {
    const tile_scratch_t t = {.k = panels, .d = rows->columns, .c_pad = c_pad};
    const tile_keys_t keys = {rows->data, rows->stride};
    pack_k(&t, FLASH_DTYPE_FP32, &keys, n);
}

static inline void load_keys(gradient_parts_t *parts, const flash_params_t *p,
                             const cpu_task_t *task, int32_t dtype, flash_range_t keys) {
    const int64_t n = (int64_t)keys.end - keys.begin;
    load_rows(dtype, cursor_at_keys(task, dtype, parts->k.columns, p->k, &p->k_stride, keys),
              &parts->k);
    load_rows(dtype, cursor_at_keys(task, dtype, parts->v.columns, p->v, &p->v_stride, keys),
              &parts->v);
    pack_transposed(&parts->k, n, parts->c_pad, parts->k_panels);
    pack_transposed(&parts->v, n, parts->c_pad, parts->v_panels);
}

#endif
