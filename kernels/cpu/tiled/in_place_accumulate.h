/*
 * This file computes O += P V with V in place, over exactly the keys that each row sees.
 */
#ifndef FLASH_KERNELS_CPU_TILED_IN_PLACE_ACCUMULATE_H
#define FLASH_KERNELS_CPU_TILED_IN_PLACE_ACCUMULATE_H

#include "cpu/tiled/in_place_values.h"

#include <string.h>

#if VEC_DOTS_BF16

/* Adds P V of one key to a row of O, in fp32. The element follows a zero in its word, which makes
 * it the upper half of its own fp32. */
static inline void add_key(const tile_scratch_t *t, int32_t dtype, const char *word, int32_t column,
                           int64_t row) {
    const int64_t stride = t->d_v * element_size(dtype);
    const vec_t p = vec_set1(element_load(t->s + row * t->c_pad, column, dtype));
    float *o = t->o + row * t->d_v_pad;
    for (int64_t i = 0; i < t->d_v;) {
        const char *from = element_at(word, i, dtype);
        vec_t v[2];
        int n = 1;
        if (t->d_v - i >= 2 * VEC_WIDTH) {
            load_word_pair(dtype, from, stride, v);
            n = 2;
        } else {
            v[0] = load_word(dtype, from, stride, (int)min64(t->d_v - i, VEC_WIDTH));
        }
        for (int j = 0; j < n; j++, i += VEC_WIDTH)
            vec_store(FLASH_DTYPE_FP32, o + i, vec_fma(p, v[j], vec_load(FLASH_DTYPE_FP32, o + i)));
    }
}

/* Adds P V of the first key, alone of its word: nothing of the word's other key is read, and V's
 * subnormals count. The word is in the scratch of packed keys. */
NEVER_INLINE void accumulate_key(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                 int64_t row, int rows) {
    const size_t bytes = (size_t)(t->d_v * element_size(dtype));
    char *word = (char *)t->k;
    memset(word, 0, bytes);
    for (int32_t head = 0; head < v->n_heads; head++) {
        memcpy(word + bytes, v->data + head * v->head_bytes, bytes);
        for (int64_t r = row; r < row + rows; r++)
            add_key(t, dtype, word, v->column, head * t->head_rows + r);
    }
}

/* Adds P V of keys begin ... end - 1 of the step, which all of the rows see. */
ALWAYS_INLINE void accumulate_keys(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                   flash_range_t keys, int64_t row, int rows) {
    int32_t n = keys.end - keys.begin;
    in_place_t part = keys_from(v, dtype, keys.begin);
    if (n > 0 && part.column % 2 != 0) {
        accumulate_key(t, dtype, &part, row, rows);
        part = keys_from(&part, dtype, 1);
        n--;
    }
    if (n >= 2)
        accumulate_words_in_place(t, dtype, &part, n / 2 * 2, row, rows);
    if (n > 0 && n % 2 != 0) {
        part = keys_from(&part, dtype, n - 1);
        accumulate_key(t, dtype, &part, row, rows);
    }
}

#else

ALWAYS_INLINE void accumulate_keys(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                   flash_range_t keys, int64_t row, int rows) {
    const in_place_t part = keys_from(v, dtype, keys.begin);
    if (keys.begin < keys.end)
        accumulate_words_in_place(t, dtype, &part, keys.end - keys.begin, row, rows);
}

#endif

/* Adds P V of keys begin ... end - 1 of those that each row of a tile sees, row by row. */
static inline void accumulate_rows(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                   flash_range_t step, flash_range_t part, int64_t row, int rows) {
    for (int64_t r = row; r < row + rows; r++) {
        const flash_range_t seen = row_columns(t, step, r);
        const flash_range_t keys = {max32(seen.begin, part.begin), min32(seen.end, part.end)};
        accumulate_keys(t, dtype, v, keys, r, 1);
    }
}

/* Adds P V of a tile of rows of one head: of all rows together over the keys that all of them see,
 * row by row over the others. Each row adds its keys in their order, wherever steps end: that
 * depends on strides and pages, which no bit of O does. */
ALWAYS_INLINE void accumulate_seen(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                   flash_range_t step, int64_t row, int rows) {
    flash_range_t common, any;
    tile_columns(t, step, row, rows, &common, &any);
    if (common.begin >= common.end) /* all keys that a row sees come before `common` then */
        common = (flash_range_t){any.end, any.end};
    const flash_range_t before = {any.begin, common.begin}, after = {common.end, any.end};
    if (before.begin < before.end)
        accumulate_rows(t, dtype, v, step, before, row, rows);
    accumulate_keys(t, dtype, v, common, row, rows);
    if (after.begin < after.end)
        accumulate_rows(t, dtype, v, step, after, row, rows);
}

/* Adds P V of a step of keys to all rows of all heads. */
NEVER_INLINE void accumulate_in_place(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                      flash_range_t step, bool all_see) {
    const int64_t rows = even_part(t->head_rows, TILE_ROWS);
    const flash_range_t all = {0, step.end - step.begin};
    for (int64_t row = 0; row < t->head_rows; row += rows) {
        const int n = (int)min64(rows, t->head_rows - row);
        if (all_see) {
            accumulate_keys(t, dtype, v, all, row, n);
            continue;
        }
        in_place_t head_v = *v;
        tile_scratch_t o = *t;
        head_v.n_heads = 1;
        for (int32_t head = 0; head < v->n_heads; head++) {
            accumulate_seen(&o, dtype, &head_v, step, row, n);
            to_next_head(&head_v);
            skip_rows(&o, t->head_rows);
        }
    }
}

#endif
