/*
 * This file adds ALiBi and the mask to a row of scores of a block of keys, and finds blocks that
 * the mask hides, which are left out.
 */
#ifndef FLASH_KERNELS_CPU_TILED_BIAS_H
#define FLASH_KERNELS_CPU_TILED_BIAS_H

#include "common/bias.h"
#include "cpu/holes.h"
#include "cpu/mask_elements.h"
#include "cpu/rows.h"
#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

#include <float.h>
#include <math.h>

/* These are scaled scores of consecutive keys, which the row sees as far as the mask goes. */
typedef struct key_scores {
    float *s;
    int32_t key; /* of s[0] */
    int32_t n;
} key_scores_t;

/* Returns the row of slopes and mask of a row of the task's heads. */
static inline flash_bias_row_t bias_row_of(const tile_scratch_t *t, const flash_params_t *p,
                                           const cpu_task_t *task, int64_t row) {
    cpu_row_t r = cpu_row(p, task, row % t->head_rows);
    r.head += row / t->head_rows * p->group;
    return flash_bias_row(p, &task->sequence, task->batch_index, r.head, r.query);
}

static inline void add_alibi(const key_scores_t *scores, const flash_bias_row_t *row) {
    static const float COUNT[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vec_t count = vec_load(FLASH_DTYPE_FP32, COUNT), slope = vec_set1(-row->slope);
    int32_t i = 0;
    for (; i + VEC_WIDTH <= scores->n; i += VEC_WIDTH) {
        const float distance = (float)(scores->key + i - row->diagonal);
        const vec_t distances = vec_abs(vec_add(vec_set1(distance), count));
        float *s = scores->s + i;
        vec_store(FLASH_DTYPE_FP32, s, vec_fma(slope, distances, vec_load(FLASH_DTYPE_FP32, s)));
    }
    for (; i < scores->n; i++)
        scores->s[i] += flash_bias_alibi(row, scores->key + i);
}

/* Returns the scores of keys that the mask has columns for. */
static inline key_scores_t covered_scores(const flash_bias_t *bias, const flash_bias_row_t *row,
                                          const key_scores_t *scores) {
    const int64_t begin = max64(row->first_key, scores->key);
    const int64_t end = min64((int64_t)row->first_key + bias->n_keys, scores->key + scores->n);
    const key_scores_t covered = {scores->s + (begin - scores->key), (int32_t)begin,
                                  (int32_t)max64(end - begin, 0)};
    return covered;
}

/* Adds one number. */
static inline void add_number(const flash_bias_t *bias, const flash_bias_row_t *row,
                              const key_scores_t *scores, int32_t i) {
    const int64_t at = flash_bias_at(bias, row, scores->key + i);
    const float number = element_load(bias->mask, at, bias->dtype);
    scores->s[i] = cpu_add_number(scores->s[i], flash_scaled_number(number, row->factor));
}

/* Adds numbers that are neighbours in memory. has_factor: the row's factor is not 1. It and dtype
 * are constants at each call. */
ALWAYS_INLINE void add_neighbours(const flash_bias_t *bias, const flash_bias_row_t *row,
                                  const key_scores_t *scores, int32_t dtype, bool has_factor) {
    const int64_t at = flash_bias_at(bias, row, scores->key);
    const vec_t hidden = vec_set1(-INFINITY), least = vec_set1(-FLT_MAX);
    const vec_t factor = vec_set1(row->factor);
    int32_t i = 0;
    for (; i + VEC_WIDTH <= scores->n; i += VEC_WIDTH) {
        float *s = scores->s + i;
        const vec_t number = vec_load(dtype, element_at(bias->mask, at + i, dtype));
        const vec_t product = has_factor ? vec_mul(number, factor) : number;
        const vec_t added = has_factor ? vec_select_less(product, least, least, product) : number;
        const vec_t sum = vec_add(vec_load(FLASH_DTYPE_FP32, s), added);
        vec_store(FLASH_DTYPE_FP32, s, vec_select_less(number, least, hidden, sum));
    }
    for (; i < scores->n; i++)
        add_number(bias, row, scores, i);
}

/* Adds numbers that are neighbours, with any factor. dtype is a constant at each call. */
ALWAYS_INLINE void add_neighbours_of(const flash_bias_t *bias, const flash_bias_row_t *row,
                                     const key_scores_t *scores, int32_t dtype) {
    if (row->factor == 1)
        add_neighbours(bias, row, scores, dtype, false);
    else
        add_neighbours(bias, row, scores, dtype, true);
}

/* A factor that is not finite would turn zeros into NaN, which add nothing. */
static inline void add_numbers(const flash_bias_t *bias, const flash_bias_row_t *row,
                               const key_scores_t *scores) {
    DTYPES_KNOWN(7); /* numbers are of no other type */
    if (bias->stride_key != 1 || !isfinite(row->factor))
        for (int32_t i = 0; i < scores->n; i++)
            add_number(bias, row, scores, i);
    else if (bias->dtype == FLASH_DTYPE_FP16)
        add_neighbours_of(bias, row, scores, FLASH_DTYPE_FP16);
    else if (bias->dtype == FLASH_DTYPE_BF16)
        add_neighbours_of(bias, row, scores, FLASH_DTYPE_BF16);
    else
        add_neighbours_of(bias, row, scores, FLASH_DTYPE_FP32);
}

/* Hides keys whose bit is 0. A word is read once for its keys. */
static inline void hide_by_bits(const flash_bias_t *bias, const flash_bias_row_t *row,
                                const key_scores_t *scores) {
    const int32_t column = scores->key - row->first_key;
    int32_t i = 0;
    while (i < scores->n) {
        const uint32_t word = cpu_mask_word(bias, flash_bias_at(bias, row, scores->key + i));
        const int32_t end = min32(scores->n, i + 32 - (column + i) % 32);
        for (; i < end; i++)
            if (!flash_bias_shows(word, row, scores->key + i))
                scores->s[i] = -INFINITY;
    }
}

/* Hides keys whose block the row does not see. */
static inline void hide_by_blocks(const flash_bias_t *bias, const flash_bias_row_t *row,
                                  const key_scores_t *scores) {
    const int64_t column = (int64_t)scores->key - row->first_key, size = bias->block.keys;
    for (int64_t i = 0, end; i < scores->n; i = end) {
        const int32_t block = cpu_block_of(bias, column + i);
        end = min64(scores->n, (block + 1) * size - column);
        for (int64_t j = i; j < end && !cpu_block_shows(bias, row, block); j++)
            scores->s[j] = -INFINITY;
    }
}

/* Adds what joins the row's scores, which are scaled and capped. */
NEVER_INLINE void add_bias(const flash_bias_t *bias, const flash_bias_row_t *row,
                           const key_scores_t *scores) {
    if (row->slope != 0)
        add_alibi(scores, row);
    if (bias->mask == NULL)
        return;
    const key_scores_t covered = covered_scores(bias, row, scores);
    if (covered.n == 0)
        return;
    if (bias->kind == FLASH_MASK_BLOCKS)
        hide_by_blocks(bias, row, &covered);
    else if (bias->kind == FLASH_MASK_BITS)
        hide_by_bits(bias, row, &covered);
    else
        add_numbers(bias, row, &covered);
}

/* ---- Hidden blocks ---- */

/* Says whether the mask hides all that the rows of the task's heads see of a block. Rows that share
 * a row of the mask are looked at once where they follow each other. */
NEVER_INLINE bool hides_block(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, flash_range_t block) {
    flash_range_t keys = {0, 0};
    int64_t at = -1;
    for (int64_t row = 0; row < t->n_rows; row++) {
        const flash_bias_row_t bias = bias_row_of(t, p, task, row);
        const flash_range_t before = keys;
        keys.begin = max32(t->begin[row], block.begin);
        keys.end = min32(t->end[row], block.end);
        if (bias.at == at && keys.begin == before.begin && keys.end == before.end)
            continue;
        at = bias.at;
        if (cpu_mask_shows(&p->bias, &bias, keys))
            return false;
    }
    return true;
}

/* Says whether the block is left out. holes: its keys in holes, or NULL. */
ALWAYS_INLINE bool skips_block(const tile_scratch_t *t, const flash_params_t *p,
                               const cpu_task_t *task, flash_range_t block,
                               const cpu_holes_t *holes) {
    return cpu_holes_hide(holes, block) || (p->bias.mask != NULL && hides_block(t, p, task, block));
}

#endif
