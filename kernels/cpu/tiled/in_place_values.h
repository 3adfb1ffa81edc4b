/*
 * O += P V with V in place.
 */
#ifndef FLASH_KERNELS_CPU_TILED_IN_PLACE_VALUES_H
#define FLASH_KERNELS_CPU_TILED_IN_PLACE_VALUES_H

#include "cpu/tiled/accumulate.h"
#include "cpu/tiled/in_place.h"

/* O[row ... row + rows)[slice] += P V over keys begin ... end - 1, which all of the rows see. */
ALWAYS_INLINE void accumulate_slice(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                    slice_t slice, flash_range_t keys, int64_t row, int rows) {
    const int64_t at = keys.begin * v->stride + slice.column;
    tile_product_t product = product_of(t, slice, row);
    product.a += v->column + keys.begin;
    product.b = element_at(v->data, at, dtype);
    product.b_stride = v->stride;
    product.depth = keys.end - keys.begin;
    product.ahead = row == 0 ? element_at(v->ahead, at, dtype) : product.b;
    product.ahead_ends = !v->adjoin && slice.column + slice.vecs * VEC_WIDTH >= t->d;
    multiply_as(&product, (tile_source_t){dtype, false}, rows, slice.vecs, slice.tail);
}

/* The same of each head and all columns. */
ALWAYS_INLINE void accumulate_rows(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                   flash_range_t keys, int64_t row, int rows) {
    in_place_t values = *v;
    tile_scratch_t o = *t;
    for (int32_t head = 0; head < v->n_heads; head++) {
        slice_t slice;
        for (int64_t column = 0; column < t->d; column += slice.vecs * VEC_WIDTH) {
            slice = slice_at(t->d, column);
            accumulate_slice(&o, dtype, &values, slice, keys, row, rows);
        }
        to_next_head(&values);
        skip_rows(&o, t->head_rows);
    }
}

NEVER_INLINE void accumulate_rows_fp32(const tile_scratch_t *t, const in_place_t *v,
                                       flash_range_t keys, int64_t row, int rows) {
    accumulate_rows(t, FLASH_DTYPE_FP32, v, keys, row, rows);
}

NEVER_INLINE void accumulate_rows_fp16(const tile_scratch_t *t, const in_place_t *v,
                                       flash_range_t keys, int64_t row, int rows) {
    accumulate_rows(t, FLASH_DTYPE_FP16, v, keys, row, rows);
}

NEVER_INLINE void accumulate_rows_bf16(const tile_scratch_t *t, const in_place_t *v,
                                       flash_range_t keys, int64_t row, int rows) {
    accumulate_rows(t, FLASH_DTYPE_BF16, v, keys, row, rows);
}

ALWAYS_INLINE void accumulate_rows_as(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                      flash_range_t keys, int64_t row, int rows) {
    if (keys.begin >= keys.end)
        return;
    if (dtype == FLASH_DTYPE_FP32)
        accumulate_rows_fp32(t, v, keys, row, rows);
    else if (dtype == FLASH_DTYPE_FP16)
        accumulate_rows_fp16(t, v, keys, row, rows);
    else
        accumulate_rows_bf16(t, v, keys, row, rows);
}

/* A tile of rows of one head; rows that do not see the same keys go one by one. */
ALWAYS_INLINE void accumulate_seen(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                   flash_range_t step, int64_t row, int rows) {
    flash_range_t common, any;
    tile_columns(t, step, row, rows, &common, &any);
    if (common.begin == any.begin && common.end == any.end) {
        accumulate_rows_as(t, dtype, v, any, row, rows);
        return;
    }
    for (int64_t r = row; r < row + rows; r++)
        accumulate_rows_as(t, dtype, v, row_columns(t, step, r), r, 1);
}

/* All rows of all heads, over a step of keys. */
ALWAYS_INLINE void accumulate_in_place(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                       flash_range_t step, bool all_see) {
    const int64_t rows = even_part(t->head_rows, TILE_ROWS);
    const flash_range_t all = {0, step.end - step.begin};
    for (int64_t row = 0; row < t->head_rows; row += rows) {
        const int n = (int)min64(rows, t->head_rows - row);
        if (all_see) {
            accumulate_rows_as(t, dtype, v, all, row, n);
            continue;
        }
        in_place_t one = *v;
        tile_scratch_t o = *t;
        one.n_heads = 1;
        for (int32_t head = 0; head < v->n_heads; head++) {
            accumulate_seen(&o, dtype, &one, step, row, n);
            to_next_head(&one);
            skip_rows(&o, t->head_rows);
        }
    }
}

#endif
