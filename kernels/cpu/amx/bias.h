/*
 * ALiBi and masks join scores of the AMX family here. Its scores lie transposed, with a lane for
 * each row of the task, so that 16 rows of 16 numbers of a mask are transposed first.
 */
#ifndef FLASH_KERNELS_CPU_AMX_BIAS_H
#define FLASH_KERNELS_CPU_AMX_BIAS_H

#include "common/bias.h"
#include "cpu/amx/scratch.h"
#include "cpu/amx/softmax.h"
#include "cpu/mask_elements.h"
#include "cpu/rows.h"

#include <float.h>
#include <math.h>

/* Finds the rows of slopes and mask of n consecutive rows of the task's first head. */
static inline void find_bias_rows(const flash_params_t *p, const cpu_task_t *task, int64_t n,
                                  flash_bias_row_t *rows) {
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < n; row++, r = cpu_next_row(p, task, r))
        rows[row] = flash_bias_row(p, &task->sequence, task->batch_index, r.head, r.query);
}

/* ---- What joins 16 scores of a row ---- */

/* These are 16 consecutive columns of a row, of which the mask has begin ... end - 1. */
typedef struct mask_columns {
    int64_t column; /* the first one; negative where the mask begins later */
    int begin;
    int end;
} mask_columns_t;

static inline mask_columns_t columns_of_keys(const flash_bias_t *bias, const flash_bias_row_t *row,
                                             int32_t key) {
    const int64_t column = (int64_t)key - row->first_key;
    const mask_columns_t columns = {column, (int)min64(max64(-column, 0), VEC_WIDTH),
                                    (int)max64(min64(bias->n_keys - column, VEC_WIDTH), 0)};
    return columns;
}

/* Returns a bit for each column that is shown, or that the mask does not have. */
static inline uint32_t shown_columns(const flash_bias_t *bias, const flash_bias_row_t *row,
                                     const mask_columns_t *columns) {
    const int64_t first = columns->column + columns->begin,
                  last = columns->column + columns->end - 1;
    uint64_t words = cpu_mask_word(bias, row->at + first / 32);
    if (last / 32 != first / 32)
        words |= (uint64_t)cpu_mask_word(bias, row->at + last / 32) << 32;
    const uint32_t bits = (uint32_t)(words >> first % 32) << columns->begin;
    const uint32_t of_mask = (1u << columns->end) - (1u << columns->begin);
    return bits | ~of_mask;
}

/* Does the same where the mask has blocks. */
static inline uint32_t shown_blocks(const flash_bias_t *bias, const flash_bias_row_t *row,
                                    const mask_columns_t *columns) {
    uint32_t shown = UINT32_MAX;
    for (int64_t i = columns->begin, end; i < columns->end; i = end) {
        const int32_t block = cpu_block_of(bias, columns->column + i);
        end = min64(columns->end, (block + 1) * (int64_t)bias->block.keys - columns->column);
        if (!cpu_block_shows(bias, row, block))
            shown &= ~((1u << end) - (1u << i));
    }
    return shown;
}

/* Returns the numbers of columns that the mask has, and zeros for the others. */
static inline vec_t numbers_of_columns(const flash_bias_t *bias, const flash_bias_row_t *row,
                                       const mask_columns_t *columns) {
    const int64_t at = row->at + columns->column * bias->stride_key;
    float numbers[VEC_WIDTH] = {0};
    if (bias->stride_key == 1 && columns->begin == 0)
        return vec_load_first(bias->dtype, element_at(bias->mask, at, bias->dtype), columns->end);
    for (int i = columns->begin; i < columns->end; i++)
        numbers[i] = element_load(bias->mask, at + i * bias->stride_key, bias->dtype);
    return vec_load(FLASH_DTYPE_FP32, numbers);
}

/* Returns what numbers add: see flash_scaled_number(). */
static inline vec_t scaled_numbers(vec_t numbers, float factor) {
    const vec_t least = vec_set1(-FLT_MAX), product = vec_mul(numbers, vec_set1(factor));
    const __mmask16 as_they_are = _mm512_cmp_ps_mask(numbers, vec_zero(), _CMP_EQ_OQ) |
                                  _mm512_cmp_ps_mask(numbers, least, _CMP_LT_OQ);
    return _mm512_mask_mov_ps(vec_select_less(product, least, least, product), as_they_are,
                              numbers);
}

/* Returns what the mask adds to scores of a row and 16 keys from `key` on. */
static inline vec_t mask_of_keys(const flash_bias_t *bias, const flash_bias_row_t *row,
                                 int32_t key) {
    const mask_columns_t columns = columns_of_keys(bias, row, key);
    if (columns.begin >= columns.end)
        return vec_zero();
    if (bias->kind != FLASH_MASK_ADD) {
        const uint32_t shown = bias->kind == FLASH_MASK_BITS ? shown_columns(bias, row, &columns)
                                                             : shown_blocks(bias, row, &columns);
        return _mm512_mask_mov_ps(vec_set1(-INFINITY), (__mmask16)shown, vec_zero());
    }
    const vec_t numbers = numbers_of_columns(bias, row, &columns);
    return row->factor == 1 ? numbers : scaled_numbers(numbers, row->factor);
}

/* Adds what joins scores. -infinity hides a key, whatever its score is. */
ALWAYS_INLINE vec_t biased_scores(vec_t scores, vec_t added) {
    const vec_t hidden = vec_set1(-INFINITY);
    const __mmask16 hides = _mm512_cmp_ps_mask(added, hidden, _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(vec_add(scores, added), hides, hidden);
}

/* ---- Squares of an item ---- */

/* Adds ALiBi to a half of the item's rows. */
static inline void add_alibi_to_half(const flash_bias_row_t *rows, const amx_item_t *item,
                                     const amx_scores_t *scores, int64_t half) {
    float slopes[VEC_WIDTH];
    int32_t diagonals[VEC_WIDTH];
    for (int i = 0; i < VEC_WIDTH; i++) {
        slopes[i] = -rows[i].slope;
        diagonals[i] = rows[i].diagonal;
    }
    const vec_t slope = _mm512_loadu_ps(slopes);
    const __m512i diagonal = _mm512_loadu_si512(diagonals);
    const int32_t first = item->key + scores->first * AMX_SQUARE;
    const int32_t n = (scores->last - scores->first) * AMX_SQUARE;
    for (int32_t i = 0; i < n; i++) {
        const __m512i distance = _mm512_sub_epi32(_mm512_set1_epi32(first + i), diagonal);
        float *s = result_row(scores->s, i) + half * VEC_WIDTH;
        const vec_t distances = _mm512_cvtepi32_ps(_mm512_abs_epi32(distance));
        _mm512_store_ps(s, vec_fma(slope, distances, _mm512_load_ps(s)));
    }
}

/* Adds the mask to scores of 16 rows and 16 keys from `key` on, of which s is the first. */
static inline void add_mask_to_tile(const flash_bias_t *bias, const flash_bias_row_t *rows,
                                    int32_t key, float *s) {
    vec_t added[VEC_WIDTH];
    for (int i = 0; i < VEC_WIDTH; i++) {
        const bool again =
            i > 0 && rows[i].at == rows[i - 1].at && rows[i].factor == rows[i - 1].factor;
        added[i] = again ? added[i - 1] : mask_of_keys(bias, &rows[i], key);
    }
    vec_transpose(added);
    for (int i = 0; i < VEC_WIDTH; i++, s += AMX_SQUARE)
        _mm512_store_ps(s, biased_scores(_mm512_load_ps(s), added[i]));
}

/* Adds the mask to a half of the item's rows, where it has columns. */
static inline void add_mask_to_half(const flash_bias_t *bias, const flash_bias_row_t *rows,
                                    const amx_item_t *item, const amx_scores_t *scores,
                                    int64_t half) {
    const int32_t n = (scores->last - scores->first) * AMX_SQUARE;
    for (int32_t i = 0; i < n; i += VEC_WIDTH) {
        const int32_t key = item->key + scores->first * AMX_SQUARE + i;
        const mask_columns_t columns = columns_of_keys(bias, rows, key);
        if (columns.begin < columns.end)
            add_mask_to_tile(bias, rows, key, result_row(scores->s, i) + half * VEC_WIDTH);
    }
}

/* Adds what joins scores of an item, which are scaled and capped. */
NEVER_INLINE void add_bias_to_squares(const amx_scratch_t *t, const flash_bias_t *bias,
                                      const amx_item_t *item, const amx_scores_t *scores) {
    for (int64_t half = 0; half < 2; half++) {
        const flash_bias_row_t *rows = t->bias_rows + item->strip * AMX_SQUARE + half * VEC_WIDTH;
        if (bias->alibi_slopes != NULL)
            add_alibi_to_half(rows, item, scores, half);
        if (bias->mask != NULL)
            add_mask_to_half(bias, rows, item, scores, half);
    }
}

/* ---- Hidden squares ---- */

/* Says whether the mask hides all that the rows of a strip see of some keys. */
NEVER_INLINE bool hides_keys(const amx_scratch_t *t, const flash_bias_t *bias, int64_t strip,
                             flash_range_t keys) {
    for (int64_t row = strip * AMX_SQUARE; row < (strip + 1) * AMX_SQUARE; row++) {
        const flash_range_t seen = {max32(t->begin[row], keys.begin), min32(t->end[row], keys.end)};
        if (cpu_mask_shows(bias, &t->bias_rows[row], seen))
            return false;
    }
    return true;
}

/* Leaves out squares that the mask hides from the strip, at both ends of some of its block, which
 * begins at `key`. */
static inline flash_range_t shown_squares(const amx_scratch_t *t, const flash_bias_t *bias,
                                          int64_t strip, int32_t key, flash_range_t squares) {
    while (squares.begin < squares.end) {
        const int32_t first = key + squares.begin * AMX_SQUARE;
        if (!hides_keys(t, bias, strip, (flash_range_t){first, first + AMX_SQUARE}))
            break;
        squares.begin++;
    }
    while (squares.begin < squares.end) {
        const int32_t end = key + squares.end * AMX_SQUARE;
        if (!hides_keys(t, bias, strip, (flash_range_t){end - AMX_SQUARE, end}))
            break;
        squares.end--;
    }
    return squares;
}

#endif
