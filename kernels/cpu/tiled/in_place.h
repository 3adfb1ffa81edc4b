/*
 * Few rows: K and V where the caller has them, a short block of keys at a time. The rows of a head
 * lie far apart, and the processor does not foresee them, so each block asks for the block after
 * it: for K beside the scores, for V beside P V, a row for each that is used.
 */
#ifndef FLASH_KERNELS_CPU_TILED_IN_PLACE_H
#define FLASH_KERNELS_CPU_TILED_IN_PLACE_H

#include "cpu/prefetch.h"
#include "cpu/rows.h"
#include "cpu/tiled/accumulate.h"
#include "cpu/tiled/pairs.h"
#include "cpu/tiled/softmax.h"

#include <string.h>

_Static_assert(DOT_ROWS == 4 || DOT_ROWS == 6, "one case for each below");

/* Keys of a block. What is asked for must neither come late nor be gone when it is used. */
enum { IN_PLACE_KEYS = 32 };

/* Keys of a head in place, and as many that are asked for meanwhile. */
typedef struct in_place {
    const char *data;
    const char *ahead;
    int64_t stride; /* elements from key to key */
    bool adjoin;    /* a row begins where another one ends: all of the lines that both are in are
                     * asked for by asking for those where each part of a row begins */
} in_place_t;

/* Rows of K, two or four, and as many that are asked for meanwhile. */
typedef struct dot_keys {
    const void *row[4];
    const void *ahead[4];
    bool adjoin; /* in_place_t */
} dot_keys_t;

/* What follows a block of keys that ends before `end`: the task's next block, or what the thread
 * reads after the task. The block itself, where that has fewer keys or is not known. */
static inline cpu_ahead_t after_block(const cpu_task_t *task, flash_range_t block, int32_t end) {
    const cpu_ahead_t self = {block, task->head_kv}, next = {{block.end, end}, task->head_kv};
    const cpu_ahead_t after = block.end < end ? next : task->ahead;
    const bool enough = after.keys.end - after.keys.begin >= block.end - block.begin;
    return enough ? after : self;
}

/* Rows of d elements. n_heads: that the task has, each block of which is asked for. */
ALWAYS_INLINE in_place_t rows_in_place(const cpu_task_t *task, int32_t n_heads, int32_t dtype,
                                       int64_t d, const void *data, const flash_strides_t *stride,
                                       flash_range_t block, cpu_ahead_t after) {
    const int64_t ahead = cpu_key_index_of(task, stride, after.keys.begin, after.head_kv);
    const in_place_t rows = {element_at(data, cpu_key_index(task, stride, block.begin), dtype),
                             element_at(data, ahead, dtype), stride->seq,
                             stride->seq == d || (n_heads > 1 && stride->head == d)};
    return rows;
}

/* ---- S = Q K^T ---- */

/* Rows of a tile of dot products at most. Where registers are few, tiles of more rows read K less
 * often, which fp32 gains by; elements of 16 bits do not. */
ALWAYS_INLINE int dot_rows_max(int32_t dtype) {
    return DOT_ROWS == 4 && dtype != FLASH_DTYPE_FP32 ? 2 : DOT_ROWS;
}

/* Keys of a tile of so many rows: its sums are enough to keep the multipliers busy, and fit into
 * the registers. */
ALWAYS_INLINE int dot_n_keys(const int rows) {
    return DOT_ROWS == 4 && rows > 2 ? 2 : 4;
}

/* sum[r][j] += the rows' vectors of Q at q, times k. */
ALWAYS_INLINE void dot_step(const float *q, int64_t q_stride, vec_t k, const int rows, const int j,
                            vec_t sum[DOT_ROWS][4]) {
    UNROLL for (int r = 0; r < rows; r++) sum[r][j] =
        vec_fma(vec_load(FLASH_DTYPE_FP32, q + r * q_stride), k, sum[r][j]);
}

/* Keys i ... i + n - 1. Those that there are not repeat the last one. */
ALWAYS_INLINE dot_keys_t dot_keys_at(int32_t dtype, const in_place_t *k, int32_t i, int32_t n_keys,
                                     const int n) {
    dot_keys_t keys = {.adjoin = k->adjoin};
    UNROLL for (int32_t j = 0; j < n; j++) {
        const int64_t at = min32(i + j, n_keys - 1) * k->stride;
        keys.row[j] = element_at(k->data, at, dtype);
        keys.ahead[j] = element_at(k->ahead, at, dtype);
    }
    return keys;
}

/* The sums of a tile, to s[row][0 ... keys - 1]. */
ALWAYS_INLINE void dot_store(vec_t sum[DOT_ROWS][4], const int rows, float *s, int64_t s_stride) {
    if (dot_n_keys(rows) == 4) {
        UNROLL for (int r = 0; r < rows; r++)
            vec_sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], s + r * s_stride);
        return;
    }
    UNROLL for (int r = 0; r < rows; r += 2) {
        const int other = r + 1 < rows ? r + 1 : r;
        float sums[4];
        vec_sum4(sum[r][0], sum[r][1], sum[other][0], sum[other][1], sums);
        memcpy(s + r * s_stride, sums, 2 * sizeof *s);
        memcpy(s + other * s_stride, sums + 2, 2 * sizeof *s);
    }
}

/* Dot products of rows of Q [rows][d] with rows of K, to s[row][0 ... keys - 1], while as many
 * others are asked for. */
ALWAYS_INLINE void dot_products(int32_t dtype, const int64_t d, const dot_keys_t *k, const float *q,
                                const int rows, float *s, int64_t s_stride) {
    const int64_t q_stride = round_up(d, 16);
    const int n = dot_n_keys(rows);
    vec_t sum[DOT_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) sum[r][j] = vec_zero();
    }
    int64_t i = 0;
    for (; d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
        UNROLL for (int j = 0; j < n; j++)
            prefetch_part(element_at(k->ahead[j], i, dtype), 2 * VEC_WIDTH * element_size(dtype));
        UNROLL for (int j = 0; j < n; j++) {
            vec_t pair[2];
            load_pair(dtype, element_at(k->row[j], i, dtype), pair);
            dot_step(q + i, q_stride, pair[0], rows, j, sum);
            dot_step(q + i + VEC_WIDTH, q_stride, pair[1], rows, j, sum);
        }
    }
    for (; i < d; i += VEC_WIDTH) {
        const int left = (int)min64(d - i, VEC_WIDTH);
        UNROLL for (int j = 0; j < n; j++) {
            const void *from = element_at(k->row[j], i, dtype);
            const vec_t k_part =
                left < VEC_WIDTH ? vec_load_first(dtype, from, left) : vec_load(dtype, from);
            prefetch_line(element_at(k->ahead[j], i, dtype));
            dot_step(q + i, q_stride, k_part, rows, j, sum);
        }
    }
    if (!k->adjoin) {
        UNROLL for (int j = 0; j < n; j++)
            prefetch_line((const char *)element_at(k->ahead[j], d, dtype) - 1);
    }
    dot_store(sum, rows, s, s_stride);
}

/* Rows row ... row + rows - 1 against all keys; rows and dtype are constants at each call. The
 * scratch has room for the surplus scores of a tile that is cut short. */
ALWAYS_INLINE void dot_tile(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                            const in_place_t *k, int32_t n_keys, int64_t row, const int rows) {
    const int n = dot_n_keys(rows);
    for (int32_t i = 0; i < n_keys; i += n) {
        const dot_keys_t keys = dot_keys_at(dtype, k, i, n_keys, n);
        dot_products(dtype, d, &keys, t->q + row * t->d_pad, rows, t->s + row * t->c_pad + i,
                     t->c_pad);
    }
}

ALWAYS_INLINE void dot_rows(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                            const in_place_t *k, int32_t n_keys, int64_t row, int rows) {
    const int most = dot_rows_max(dtype);
    if (rows == 1)
        dot_tile(t, dtype, d, k, n_keys, row, 1);
    else if (most > 2 && rows == 2)
        dot_tile(t, dtype, d, k, n_keys, row, 2);
    else if (most > 2 && rows == 3)
        dot_tile(t, dtype, d, k, n_keys, row, 3);
    else if (most > 4 && rows == 4)
        dot_tile(t, dtype, d, k, n_keys, row, 4);
    else if (most > 4 && rows == 5)
        dot_tile(t, dtype, d, k, n_keys, row, 5);
    else
        dot_tile(t, dtype, d, k, n_keys, row, most);
}

/* Scores of all rows; the first ones ask for what comes next. */
ALWAYS_INLINE void score_tiles(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                               const in_place_t *k, int32_t n_keys) {
    const int64_t rows = even_part(t->n_rows, dot_rows_max(dtype));
    in_place_t keys = *k;
    for (int64_t row = 0; row < t->n_rows; row += rows) {
        dot_rows(t, dtype, d, &keys, n_keys, row, (int)min64(rows, t->n_rows - row));
        keys.ahead = keys.data;
    }
}

/* Head dimensions that are common have code of their own. */
ALWAYS_INLINE void score_in_place(const tile_scratch_t *t, int32_t dtype, const in_place_t *k,
                                  int32_t n_keys) {
    if (t->d == 128)
        score_tiles(t, dtype, 128, k, n_keys);
    else if (t->d == 64)
        score_tiles(t, dtype, 64, k, n_keys);
    else
        score_tiles(t, dtype, t->d, k, n_keys);
}

NEVER_INLINE void score_fp32(const tile_scratch_t *t, const in_place_t *k, int32_t n_keys) {
    score_in_place(t, FLASH_DTYPE_FP32, k, n_keys);
}

NEVER_INLINE void score_fp16(const tile_scratch_t *t, const in_place_t *k, int32_t n_keys) {
    score_in_place(t, FLASH_DTYPE_FP16, k, n_keys);
}

NEVER_INLINE void score_bf16(const tile_scratch_t *t, const in_place_t *k, int32_t n_keys) {
    score_in_place(t, FLASH_DTYPE_BF16, k, n_keys);
}

ALWAYS_INLINE void score_rows(const tile_scratch_t *t, int32_t dtype, const in_place_t *k,
                              int32_t n_keys) {
    if (dtype == FLASH_DTYPE_FP32)
        score_fp32(t, k, n_keys);
    else if (dtype == FLASH_DTYPE_FP16)
        score_fp16(t, k, n_keys);
    else
        score_bf16(t, k, n_keys);
}

/* ---- A block of keys ---- */

/* Of one of the task's n_heads. `end`: of the task's keys. */
ALWAYS_INLINE void attend_in_place(const tile_scratch_t *t, const flash_params_t *p,
                                   const cpu_task_t *head, int32_t n_heads, int32_t dtype,
                                   flash_range_t block, int32_t end) {
    const cpu_ahead_t after = after_block(head, block, end);
    const in_place_t k =
        rows_in_place(head, n_heads, dtype, t->d, p->k, &p->k_stride, block, after);
    const in_place_t v =
        rows_in_place(head, n_heads, dtype, t->d, p->v, &p->v_stride, block, after);
    const values_t values = {
        .data = v.data, .ahead = v.ahead, .stride = v.stride, .adjoin = v.adjoin};
    score_rows(t, dtype, &k, block.end - block.begin);
    softmax(t, block, p, false);
    accumulate(t, dtype, &values, block);
}

/* After the last block: the columns of O, which are those of V as load_pair() leaves them. */
ALWAYS_INLINE void sort_columns(const tile_scratch_t *t, int32_t dtype) {
    for (int64_t row = 0; row < t->n_rows; row++) {
        for (int64_t i = 0; t->d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
            float *o = t->o + row * t->d_pad + i;
            vec_t pair[2];
            load_pair(FLASH_DTYPE_FP32, o, pair);
            sort_pair(dtype, pair);
            vec_store(FLASH_DTYPE_FP32, o, pair[0]);
            vec_store(FLASH_DTYPE_FP32, o + VEC_WIDTH, pair[1]);
        }
    }
}

#endif
