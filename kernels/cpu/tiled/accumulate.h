/*
 * This file computes O += P V for a block of packed keys.
 */
#ifndef FLASH_KERNELS_CPU_TILED_ACCUMULATE_H
#define FLASH_KERNELS_CPU_TILED_ACCUMULATE_H

#include "cpu/tiled/multiply.h"
#include "cpu/tiled/pack.h"
#include "cpu/tiled/slice.h"

typedef struct values {
    const float *data;
    bool finite; /* all of it */
} values_t;

ALWAYS_INLINE tile_product_t product_of(const tile_scratch_t *t, slice_t slice, int64_t row) {
    const tile_product_t product = {.a = t->s + row * t->c_pad,
                                    .a_stride = t->c_pad,
                                    .a_step = 1,
                                    .c = t->o + row * t->d_v_pad + slice.column,
                                    .c_stride = t->d_v_pad,
                                    .accumulate = true};
    return product;
}

/* A range is words begin ... end - 1 of a block of packed keys. */
typedef struct word_range {
    int64_t begin;
    int64_t end;
} word_range_t;

/* Computes O[row ... row + rows)[slice] += P V over some words of packed keys. */
ALWAYS_INLINE void accumulate_words(const tile_scratch_t *t, const values_t *values, slice_t slice,
                                    word_range_t words, int64_t row, int rows) {
    const int64_t c_words = count_words(t->c_pad);
    const panel_t panel = panel_of(slice.column, c_words, t->d_v_pad);
    const float *data = values->data + panel.offset;
    tile_product_t product = product_of(t, slice, row);
    product.a += words.begin;
    product.b = data + words.begin * panel.width;
    product.b_stride = panel.width;
    product.depth = words.end - words.begin;
    product.prefetch = panel_prefetch(data, panel, c_words, row);
    if (words.begin < words.end)
        multiply_packed(&product, rows, slice.vecs);
}

/* Adds P V of one key. Nothing of the other key of its word is read. */
ALWAYS_INLINE void accumulate_one_key(const tile_scratch_t *t, const values_t *values,
                                      slice_t slice, int64_t key, int64_t row) {
    float words[TILE_COLUMNS];
    const panel_t panel = panel_of(slice.column, count_words(t->c_pad), t->d_v_pad);
    const float *data = values->data + panel.offset;
    tile_product_t product = product_of(t, slice, row);
    words_keep(data + key / WORD_ELEMENTS * panel.width, key % WORD_ELEMENTS,
               slice.vecs * VEC_WIDTH, words);
    product.a += key / WORD_ELEMENTS;
    product.b = words;
    product.depth = 1;
    product.prefetch = (const char *)words;
    multiply_packed(&product, 1, slice.vecs);
}

/* Adds P V of the keys that the row sees, of a block that may hold infinity or NaN. */
ALWAYS_INLINE void accumulate_row(const tile_scratch_t *t, const values_t *values, slice_t slice,
                                  flash_range_t keys, int64_t row) {
    const word_range_t whole = {count_words(keys.begin), keys.end / WORD_ELEMENTS};
    if (keys.begin >= keys.end)
        return;
    if (keys.begin < whole.begin * WORD_ELEMENTS)
        accumulate_one_key(t, values, slice, keys.begin, row);
    accumulate_words(t, values, slice, whole, row, 1);
    if (whole.end * WORD_ELEMENTS < keys.end)
        accumulate_one_key(t, values, slice, whole.end * WORD_ELEMENTS, row);
}

/* Adds P V of a tile of rows, over the keys that any of them sees. P is 0 where a row does not see
 * one, which makes NaN of infinity: where there may be any, rows go one by one. */
ALWAYS_INLINE void accumulate_tile(const tile_scratch_t *t, const values_t *values, slice_t slice,
                                   flash_range_t block, int64_t row, int rows) {
    flash_range_t common, any;
    tile_columns(t, block, row, rows, &common, &any);
    if (values->finite) {
        const word_range_t words = {any.begin / WORD_ELEMENTS, count_words(any.end)};
        accumulate_words(t, values, slice, words, row, rows);
        return;
    }
    for (int64_t r = row; r < row + rows; r++)
        accumulate_row(t, values, slice, row_columns(t, block, r), r);
}

ALWAYS_INLINE void accumulate(const tile_scratch_t *t, const values_t *values,
                              flash_range_t block) {
    const int64_t rows = even_part(t->n_rows, TILE_ROWS);
    slice_t slice;
    for (int64_t column = 0; column < t->d_v; column += slice.vecs * VEC_WIDTH) {
        slice = slice_at(t->d_v_pad, column);
        for (int64_t row = 0; row < t->n_rows; row += rows)
            accumulate_tile(t, values, slice, block, row, (int)min64(rows, t->n_rows - row));
    }
}

#endif
