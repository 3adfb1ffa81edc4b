/*
 * This file loads what gradients of a block need: rows of Q and dO, with D and the logarithm of
 * their sums, or keys, packed for the products.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_GATHER_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_GATHER_H

#include "common/gradients.h"
#include "cpu/gradient_parts.h"
#include "cpu/row_cursor.h"
#include "cpu/tiled/gradient_multiply.h"
#include "cpu/tiled/pack.h"
#include "cpu/tiled/prefetch_run.h"

/* Loads rows of a type that is a constant at each call, in words of neighbours in a row. */
ALWAYS_INLINE void load_rows_of(int32_t dtype, row_cursor_t rows, word_rows_t *to) {
    finite_t finite = {{vec_zero(), vec_zero()}};
    row_cursor_t prefetch = rows;
    float *row_to = to->along;
    for (int64_t r = 0; r < PREFETCH_QUERIES; r++)
        prefetch_next(&prefetch);
    for (const char *row = cursor_next(&rows); row; row = cursor_next(&rows)) {
        prefetch_next(&prefetch);
        for (int64_t i = 0; i < count_words(to->columns); i += VEC_WIDTH) {
            const vec_t x = words_load(dtype, row, i * WORD_ELEMENTS, to->columns);
            vec_store(FLASH_DTYPE_FP32, row_to + i, x);
            note_words(&finite, x);
        }
        row_to += to->along_stride;
    }
    to->finite = is_finite(&finite);
}

NEVER_INLINE void load_rows_fp32(row_cursor_t rows, word_rows_t *to) {
    load_rows_of(FLASH_DTYPE_FP32, rows, to);
}

NEVER_INLINE void load_rows_fp16(row_cursor_t rows, word_rows_t *to) {
    load_rows_of(FLASH_DTYPE_FP16, rows, to);
}

NEVER_INLINE void load_rows_bf16(row_cursor_t rows, word_rows_t *to) {
    load_rows_of(FLASH_DTYPE_BF16, rows, to);
}

static inline void load_rows(int32_t dtype, row_cursor_t rows, word_rows_t *to) {
#if VEC_DOTS_BF16
    (void)dtype; /* words are of bf16 */
    load_rows_bf16(rows, to);
#else
    if (dtype == FLASH_DTYPE_FP32)
        load_rows_fp32(rows, to);
    else if (dtype == FLASH_DTYPE_FP16)
        load_rows_fp16(rows, to);
    else
        load_rows_bf16(rows, to);
#endif
}

/* Makes words of neighbours in a column of n rows. A row that is missing is zeros, and so are words
 * that products take beyond them. */
NEVER_INLINE void cross_rows(const word_rows_t *rows, int64_t n) {
#if VEC_DOTS_BF16
    const int64_t columns = round_up(rows->columns, VEC_WIDTH);
    for (int64_t r = 0; r < n; r += 2) {
        const float *first = rows->along + r * rows->along_stride;
        const float *second = first + rows->along_stride;
        float *to = rows->across + r / 2 * rows->across_stride;
        for (int64_t i = 0; i < columns; i += 2 * VEC_WIDTH) {
            vec_t words[2];
            vec_zip_bf16(vec_load(FLASH_DTYPE_FP32, first + i / 2),
                         r + 1 < n ? vec_load(FLASH_DTYPE_FP32, second + i / 2) : vec_zero(),
                         words);
            vec_store(FLASH_DTYPE_FP32, to + i, words[0]);
            if (i + VEC_WIDTH < columns)
                vec_store(FLASH_DTYPE_FP32, to + i + VEC_WIDTH, words[1]);
        }
    }
    for (int64_t r = count_words(n); r < product_words(n); r++)
        memset(rows->across + r * rows->across_stride, 0, (size_t)columns * sizeof(float));
#else
    (void)rows;
    (void)n;
#endif
}

/* Turns n rows of a block: words of neighbours in a column, a row of them for each column. A row
 * that is missing is zeros, up to whole tiles of rows. */
NEVER_INLINE void turn_rows(const word_rows_t *rows, int64_t n) {
#if GRADIENTS_ON_TILES
    const int64_t words = product_words(rows->columns), stride = rows->turned_stride;
    for (int64_t r = 0; r < n; r += GRADIENT_TILE) {
        for (int64_t i = 0; i < words; i += VEC_WIDTH) {
            vec_t low[VEC_WIDTH], high[VEC_WIDTH];
            for (int64_t j = 0; j < VEC_WIDTH; j++) {
                const int64_t row = r + 2 * j;
                const float *from = rows->along + row * rows->along_stride + i;
                vec_t words_of_both[2];
                vec_zip_bf16(row < n ? vec_load(FLASH_DTYPE_FP32, from) : vec_zero(),
                             row + 1 < n ? vec_load(FLASH_DTYPE_FP32, from + rows->along_stride)
                                         : vec_zero(),
                             words_of_both);
                low[j] = words_of_both[0];
                high[j] = words_of_both[1];
            }
            vec_transpose(low);
            vec_transpose(high);
            float *to = rows->turned + 2 * i * stride + r / 2;
            store_square(low, VEC_WIDTH, to, stride);
            store_square(high, VEC_WIDTH, to + VEC_WIDTH * stride, stride);
        }
    }
#else
    (void)rows;
    (void)n;
#endif
}

/* Makes the words of neighbours in a column of a block of Q or dO. */
static inline void cross_block(const word_rows_t *rows, int64_t n) {
    if (GRADIENTS_ON_TILES)
        turn_rows(rows, n);
    else
        cross_rows(rows, n);
}

/* ---- Rows of Q ---- */

/* A block of rows of those that a task has room for: a task with the same rows, and what gradients
 * need of them. */
typedef struct gradient_block {
    cpu_task_t task;
    word_rows_t q;
    word_rows_t d_o;
    const float *log_sum;
    const float *d;
    tile_scratch_t seen; /* of this only what says which keys a row sees */
    int64_t n_next;      /* rows behind these that the task has loaded and comes to next */
} gradient_block_t;

/* Returns rows `row` ... of a matrix, `row` being a whole number of words. */
static inline word_rows_t rows_from(const word_rows_t *all, int64_t row, int32_t B_r, bool finite) {
    word_rows_t rows = *all;
    rows.along += row * rows.along_stride;
    if (GRADIENTS_ON_TILES)
        rows.turned += row / B_r * rows.turned_block;
    else
        rows.across += row / WORD_ELEMENTS * rows.across_stride;
    rows.finite = finite;
    return rows;
}

/* Makes rows `row` ... of those that there is room for the block of a task. */
static inline gradient_block_t block_of_rows(const gradient_rows_t *rows, const cpu_task_t *task,
                                             int64_t row, int32_t B_r) {
    gradient_block_t block = {.task = *task};
    block.q = rows_from(&rows->q, row, B_r, rows->q_is_finite[row / B_r] != 0);
    block.d_o = rows_from(&rows->d_o, row, B_r, rows->d_o_is_finite[row / B_r] != 0);
    block.log_sum = rows->log_sum + row;
    block.d = rows->d + row;
    block.seen.begin = rows->begin + row;
    block.seen.end = rows->end + row;
    block.seen.n_rows = block.seen.head_rows = task->row_end - task->row_begin;
    return block;
}

/* Returns the next rows of one of the block's matrices, which its products prefetch. */
static inline prefetch_run_t rows_behind(const word_rows_t *rows, const gradient_block_t *block) {
    return prefetch_run_of(rows->along, rows->along_stride, block->seen.n_rows, block->n_next);
}

/* Returns the same of words across rows, where these are others. */
static inline prefetch_run_t across_behind(const word_rows_t *rows, const gradient_block_t *block) {
    if (GRADIENTS_ON_TILES)
        return prefetch_run_of(rows->turned, rows->turned_block, 1, block->n_next > 0 ? 1 : 0);
    return prefetch_run_of(rows->across, rows->across_stride, count_words(block->seen.n_rows),
                           WORD_ELEMENTS == 1 ? 0 : count_words(block->n_next));
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
    cross_block(&block.q, block.seen.n_rows);
    cross_block(&block.d_o, block.seen.n_rows);
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
static inline void pack_transposed(const word_rows_t *rows, int64_t n, int64_t c_pad,
                                   float *panels) {
    const int32_t dtype = WORD_ELEMENTS == 1 ? FLASH_DTYPE_FP32 : FLASH_DTYPE_BF16;
    const int64_t columns = GRADIENTS_ON_TILES ? gradient_tiles(rows->columns) : rows->columns;
    const tile_scratch_t t = {.k = panels, .d = columns, .c_pad = c_pad};
    const tile_keys_t keys = {rows->along, rows->along_stride * WORD_ELEMENTS};
    pack_k(&t, dtype, &keys, n);
}

static inline void load_keys(gradient_parts_t *parts, const flash_params_t *p,
                             const cpu_task_t *task, int32_t dtype, flash_range_t keys) {
    const int64_t n = (int64_t)keys.end - keys.begin;
    load_rows(dtype, cursor_at_keys(task, dtype, parts->k.columns, p->k, &p->k_stride, keys),
              &parts->k);
    load_rows(dtype, cursor_at_keys(task, dtype, parts->v.columns, p->v, &p->v_stride, keys),
              &parts->v);
    cross_rows(&parts->k, n);
    pack_transposed(&parts->k, n, parts->c_pad, parts->k_panels);
    pack_transposed(&parts->v, n, parts->c_pad, parts->v_panels);
}

#endif
