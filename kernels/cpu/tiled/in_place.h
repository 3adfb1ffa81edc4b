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
#include "cpu/tiled/softmax.h"

_Static_assert(DOT_ROWS == 2 || DOT_ROWS == 6, "one case for each below");

/* Keys of a block. What is asked for must neither come late nor be gone when it is used. */
enum { IN_PLACE_KEYS = 32 };

/* Keys of a head in place, and as many that are asked for meanwhile. */
typedef struct in_place {
    const char *data;
    const char *ahead;
    int64_t stride; /* elements from key to key */
} in_place_t;

/* Four rows of K, and as many that are asked for meanwhile. */
typedef struct four_keys {
    const void *row[4];
    const void *ahead[4];
} four_keys_t;

/* What follows a block of keys that ends before `end`: the task's next block, or what the thread
 * reads after the task. The block itself, where that has fewer keys or is not known. */
static inline cpu_ahead_t after_block(const cpu_task_t *task, flash_range_t block, int32_t end) {
    const cpu_ahead_t self = {block, task->head_kv}, next = {{block.end, end}, task->head_kv};
    const cpu_ahead_t after = block.end < end ? next : task->ahead;
    const bool enough = after.keys.end - after.keys.begin >= block.end - block.begin;
    return enough ? after : self;
}

ALWAYS_INLINE in_place_t rows_in_place(const cpu_task_t *task, int32_t dtype, const void *data,
                                       const flash_strides_t *stride, flash_range_t block,
                                       cpu_ahead_t after) {
    const int64_t ahead = cpu_key_index_of(task, stride, after.keys.begin, after.head_kv);
    const in_place_t rows = {element_at(data, cpu_key_index(task, stride, block.begin), dtype),
                             element_at(data, ahead, dtype), stride->seq};
    return rows;
}

/* ---- S = Q K^T ---- */

/* sum[r][j] += the rows' vectors of Q at q, times k. */
ALWAYS_INLINE void dot_step(const float *q, int64_t q_stride, vec_t k, const int rows, const int j,
                            vec_t sum[DOT_ROWS][4]) {
    UNROLL for (int r = 0; r < rows; r++) sum[r][j] =
        vec_fma(vec_load(FLASH_DTYPE_FP32, q + r * q_stride), k, sum[r][j]);
}

/* Keys i ... i + 3. A group of four that is cut short repeats its last key. */
ALWAYS_INLINE four_keys_t four_keys(int32_t dtype, const in_place_t *k, int32_t i, int32_t n_keys) {
    four_keys_t four;
    UNROLL for (int32_t j = 0; j < 4; j++) {
        const int64_t at = min32(i + j, n_keys - 1) * k->stride;
        four.row[j] = element_at(k->data, at, dtype);
        four.ahead[j] = element_at(k->ahead, at, dtype);
    }
    return four;
}

/* Dot products of rows of Q [rows][d] with four rows of K, to s[row][0 ... 3], while four others
 * are asked for. */
ALWAYS_INLINE void dot_four(int32_t dtype, const int64_t d, const four_keys_t *k, const float *q,
                            const int rows, float *s, int64_t s_stride) {
    const int64_t q_stride = round_up(d, 16);
    vec_t sum[DOT_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < 4; j++) sum[r][j] = vec_zero();
    }
    int64_t i = 0;
    for (; d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
        UNROLL for (int j = 0; j < 4; j++)
            prefetch_part(element_at(k->ahead[j], i, dtype), 2 * VEC_WIDTH * element_size(dtype));
        UNROLL for (int j = 0; j < 4; j++) {
            vec_t pair[2];
            vec_load_pair(dtype, element_at(k->row[j], i, dtype), pair);
            dot_step(q + i, q_stride, pair[0], rows, j, sum);
            dot_step(q + i + VEC_WIDTH, q_stride, pair[1], rows, j, sum);
        }
    }
    for (; i < d; i += VEC_WIDTH) {
        const int n = (int)min64(d - i, VEC_WIDTH);
        UNROLL for (int j = 0; j < 4; j++) {
            const void *from = element_at(k->row[j], i, dtype);
            const vec_t k_part =
                n < VEC_WIDTH ? vec_load_first(dtype, from, n) : vec_load(dtype, from);
            prefetch_line(element_at(k->ahead[j], i, dtype));
            dot_step(q + i, q_stride, k_part, rows, j, sum);
        }
    }
    UNROLL for (int j = 0; j < 4; j++)
        prefetch_line((const char *)element_at(k->ahead[j], d, dtype) - 1);
    UNROLL for (int r = 0; r < rows; r++)
        vec_sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], s + r * s_stride);
}

/* Rows row ... row + rows - 1 against all keys; rows and dtype are constants at each call. The
 * scratch has room for the surplus scores of a group of four that is cut short. */
ALWAYS_INLINE void dot_tile(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                            const in_place_t *k, int32_t n_keys, int64_t row, const int rows) {
    for (int32_t i = 0; i < n_keys; i += 4) {
        const four_keys_t four = four_keys(dtype, k, i, n_keys);
        dot_four(dtype, d, &four, t->q + row * t->d_pad, rows, t->s + row * t->c_pad + i, t->c_pad);
    }
}

ALWAYS_INLINE void dot_rows(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                            const in_place_t *k, int32_t n_keys, int64_t row, int rows) {
    switch (rows) {
    case 1:
        dot_tile(t, dtype, d, k, n_keys, row, 1);
        break;
    case 2:
        dot_tile(t, dtype, d, k, n_keys, row, 2);
        break;
#if DOT_ROWS == 6
    case 3:
        dot_tile(t, dtype, d, k, n_keys, row, 3);
        break;
    case 4:
        dot_tile(t, dtype, d, k, n_keys, row, 4);
        break;
    case 5:
        dot_tile(t, dtype, d, k, n_keys, row, 5);
        break;
#endif
    default:
        dot_tile(t, dtype, d, k, n_keys, row, DOT_ROWS);
        break;
    }
}

/* Scores of all rows; the first ones ask for what comes next. */
ALWAYS_INLINE void score_tiles(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                               const in_place_t *k, int32_t n_keys) {
    const int64_t rows = even_part(t->n_rows, DOT_ROWS);
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

/* `end`: of the task's keys. */
ALWAYS_INLINE void attend_in_place(const tile_scratch_t *t, const flash_params_t *p,
                                   const cpu_task_t *task, int32_t dtype, flash_range_t block,
                                   int32_t end) {
    const cpu_ahead_t after = after_block(task, block, end);
    const in_place_t k = rows_in_place(task, dtype, p->k, &p->k_stride, block, after);
    const in_place_t v = rows_in_place(task, dtype, p->v, &p->v_stride, block, after);
    const values_t values = {.data = v.data, .ahead = v.ahead, .stride = v.stride, .packed = false};
    score_rows(t, dtype, &k, block.end - block.begin);
    softmax(t, block, p->softcap);
    accumulate(t, dtype, &values, block);
}

/* After the last block: the columns of O, which are those of V as vec_load_pair() leaves them. */
ALWAYS_INLINE void sort_columns(const tile_scratch_t *t, int32_t dtype) {
    for (int64_t row = 0; row < t->n_rows; row++) {
        for (int64_t i = 0; t->d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
            float *o = t->o + row * t->d_pad + i;
            vec_t pair[2];
            vec_load_pair(FLASH_DTYPE_FP32, o, pair);
            vec_sort_pair(dtype, pair);
            vec_store(FLASH_DTYPE_FP32, o, pair[0]);
            vec_store(FLASH_DTYPE_FP32, o + VEC_WIDTH, pair[1]);
        }
    }
}

#endif
