/*
 * O += P V for a block of keys, packed or in place.
 */
#ifndef FLASH_KERNELS_CPU_TILED_ACCUMULATE_H
#define FLASH_KERNELS_CPU_TILED_ACCUMULATE_H

#include "cpu/tiled/multiply.h"
#include "cpu/tiled/pack.h"

/* V of a block: packed panels, or where the caller has it. */
typedef struct values {
    const void *data;  /* key 0 of the block */
    const void *ahead; /* in place: rows to ask for, one for each of the block's */
    int64_t stride;    /* in place: elements from key to key */
    bool packed;
} values_t;

/* The part of O that one call of the micro-kernel computes: columns of V. */
typedef struct slice {
    int64_t column;
    int vecs;
    int tail; /* elements of the only vector, 0: all */
} slice_t;

static inline slice_t slice_at(const tile_scratch_t *t, const values_t *values, int64_t column) {
    const int64_t vecs = ((values->packed ? t->d_pad : t->d) - column) / VEC_WIDTH;
    slice_t slice = {column, (int)min64(vecs, TILE_VECS), 0};
    if (vecs == 0) {
        slice.vecs = 1;
        slice.tail = (int)(t->d - column);
    }
    return slice;
}

/* O[row ... row + rows)[slice] += P V over these keys, which all of the rows see. */
ALWAYS_INLINE void accumulate_keys(const tile_scratch_t *t, int32_t dtype, const values_t *values,
                                   slice_t slice, flash_range_t keys, int64_t row, int rows) {
    if (keys.begin >= keys.end)
        return;
    tile_product_t product = {.a = t->s + row * t->c_pad + keys.begin,
                              .a_stride = t->c_pad,
                              .c = t->o + row * t->d_pad + slice.column,
                              .c_stride = t->d_pad,
                              .depth = keys.end - keys.begin,
                              .accumulate = true};
    if (values->packed) {
        const panel_t panel = panel_of(slice.column, t->c_pad, t->d_pad);
        const float *data = (const float *)values->data + panel.offset;
        product.b = data + keys.begin * panel.width;
        product.b_stride = panel.width;
        product.ahead = ahead_of(data, panel, t->c_pad, row);
        multiply_packed(&product, rows, slice.vecs);
    } else {
        const int64_t at = keys.begin * values->stride + slice.column;
        product.b = element_at(values->data, at, dtype);
        product.b_stride = values->stride;
        product.ahead = row == 0 ? element_at(values->ahead, at, dtype) : product.b;
        multiply_in_place(&product, dtype, rows, slice.vecs, slice.tail);
    }
}

/* A tile of rows: together over the keys that all of them see, one by one over the others. */
ALWAYS_INLINE void accumulate_tile(const tile_scratch_t *t, int32_t dtype, const values_t *values,
                                   slice_t slice, flash_range_t block, int64_t row, int rows) {
    flash_range_t common, any;
    tile_columns(t, block, row, rows, &common, &any);
    if (common.begin >= common.end)
        common.begin = common.end = any.end; /* then all of it is before */
    accumulate_keys(t, dtype, values, slice, common, row, rows);
    if (common.begin <= any.begin && any.end <= common.end)
        return;
    for (int64_t r = row; r < row + rows; r++) {
        const flash_range_t own = row_columns(t, block, r);
        const flash_range_t before = {own.begin, min32(own.end, common.begin)};
        const flash_range_t after = {max32(own.begin, common.end), own.end};
        accumulate_keys(t, dtype, values, slice, before, r, 1);
        accumulate_keys(t, dtype, values, slice, after, r, 1);
    }
}

ALWAYS_INLINE void accumulate(const tile_scratch_t *t, int32_t dtype, const values_t *values,
                              flash_range_t block) {
    const int64_t rows = even_part(t->n_rows, TILE_ROWS);
    slice_t slice;
    for (int64_t column = 0; column < t->d; column += slice.vecs * VEC_WIDTH) {
        slice = slice_at(t, values, column);
        for (int64_t row = 0; row < t->n_rows; row += rows)
            accumulate_tile(t, dtype, values, slice, block, row, (int)min64(rows, t->n_rows - row));
    }
}

#endif
