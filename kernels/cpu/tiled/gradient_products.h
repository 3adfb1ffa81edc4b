/*
 * This file adds what a block of rows and a block of keys give to gradients:
 *
 *     dQ += dS K, dK += dS^T Q, dV += P^T dO
 *
 * P and dS are read as they lie, by rows of Q: a column of them is a row of their transpose.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_PRODUCTS_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_PRODUCTS_H

#include "cpu/gradient_parts.h"
#include "cpu/tiled/gradient_scores.h"
#include "cpu/tiled/slice.h"

/* Computes C += A B as multiply_packed() does, with the same bits, but leaves out what is hidden:
 * 0 times what is not finite is NaN. seen: P, an element for each of A. */
NEVER_INLINE void multiply_seen(const tile_product_t *product, const float *seen, int rows,
                                int vecs) {
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vecs; v++) {
            const float *b = product->b + v * VEC_WIDTH;
            float *c = product->c + r * product->c_stride + v * VEC_WIDTH;
            vec_t sum = vec_zero();
            for (int64_t k = 0; k < product->depth; k++) {
                const int64_t at = r * product->a_stride + k * product->a_step;
                if (!is_hidden(seen[at]))
                    sum = vec_fma(vec_set1(product->a[at]),
                                  vec_load(FLASH_DTYPE_FP32, b + k * product->b_stride), sum);
            }
            vec_store(FLASH_DTYPE_FP32, c, vec_add(sum, vec_load(FLASH_DTYPE_FP32, c)));
        }
    }
}

/* A matrix of a block, P or dS, times rows of B, for some of the sums' columns. */
typedef struct sums_product {
    const float *a; /* P or dS */
    const fp32_rows_t *b;
    const gradient_sums_t *sums;
    float *c; /* the first row of the sums that the block adds to */
} sums_product_t;

ALWAYS_INLINE void add_product(const gradient_parts_t *parts, const sums_product_t *of,
                               tile_product_t *product, slice_t slice, int64_t a_at, int64_t b_row,
                               int64_t c_row, int rows) {
    product->a = of->a + a_at;
    product->b = of->b->data + b_row * of->b->stride + slice.column;
    product->b_stride = of->b->stride;
    product->c = of->c + c_row * of->sums->stride + slice.column;
    product->c_stride = of->sums->stride;
    product->accumulate = true;
    product->prefetch = (const char *)product->b;
    if (product->depth <= 0)
        return;
    if (of->b->finite)
        multiply_packed(product, rows, slice.vecs);
    else
        multiply_seen(product, parts->p + a_at, rows, slice.vecs);
}

/* Adds dS K to a tile of rows, over the keys that any of them sees. */
ALWAYS_INLINE void add_to_rows(const gradient_parts_t *parts, const gradient_pair_t *pair,
                               const sums_product_t *of, slice_t slice, int64_t row, int rows) {
    flash_range_t common, any;
    tile_columns(&pair->rows->seen, pair->keys, row, rows, &common, &any);
    tile_product_t product = {
        .a_stride = parts->s_stride, .a_step = 1, .depth = (int64_t)any.end - any.begin};
    add_product(parts, of, &product, slice, row * parts->s_stride + any.begin, any.begin, row,
                rows);
}

/* Adds to a tile of keys, over the rows that see any of them. */
ALWAYS_INLINE void add_to_keys(const gradient_parts_t *parts, const sums_product_t *of,
                               slice_t slice, int64_t key, int keys) {
    const int32_t first = parts->first_row[key / TILE_ROWS], end = parts->end_row[key / TILE_ROWS];
    tile_product_t product = {
        .a_stride = 1, .a_step = parts->s_stride, .depth = (int64_t)end - first};
    add_product(parts, of, &product, slice, first * parts->s_stride + key, first, key, keys);
}

/* Computes dQ += dS K of the block's rows. dq: where their sums begin. */
NEVER_INLINE void add_to_dq(const gradient_parts_t *parts, const gradient_pair_t *pair, float *dq) {
    const sums_product_t of = {parts->ds, &parts->k, &parts->dq, dq};
    const int64_t columns = round_up(parts->k.columns, VEC_WIDTH);
    const int64_t n_rows = pair->rows->seen.n_rows;
    slice_t slice;
    for (int64_t column = 0; column < columns; column += slice.vecs * VEC_WIDTH) {
        slice = slice_at(columns, column);
        for (int64_t row = 0; row < n_rows; row += TILE_ROWS)
            add_to_rows(parts, pair, &of, slice, row, (int)min64(TILE_ROWS, n_rows - row));
    }
}

/* Computes dK += dS^T Q or dV += P^T dO of n keys. */
NEVER_INLINE void add_to_keys_of(const gradient_parts_t *parts, const sums_product_t *of,
                                 int64_t n) {
    const int64_t columns = round_up(of->b->columns, VEC_WIDTH);
    slice_t slice;
    for (int64_t column = 0; column < columns; column += slice.vecs * VEC_WIDTH) {
        slice = slice_at(columns, column);
        for (int64_t key = 0; key < n; key += TILE_ROWS)
            add_to_keys(parts, of, slice, key, (int)min64(TILE_ROWS, n - key));
    }
}

/* ---- Rows that see keys ---- */

/* Finds the rows that see some key of each tile of keys, from the first to the last one. Both ends
 * of what rows see move right or stay from row to row, but where the last rows see nothing. */
static inline void find_rows_of_tiles(const gradient_parts_t *parts, const gradient_pair_t *pair) {
    const tile_scratch_t *seen = &pair->rows->seen;
    const bool all = rows_see(seen, pair->keys);
    int64_t first = 0, end = 0, n_rows = seen->n_rows;
    while (n_rows > 0 && seen->begin[n_rows - 1] >= seen->end[n_rows - 1])
        n_rows--;
    for (int64_t key = pair->keys.begin; key < pair->keys.end; key += TILE_ROWS) {
        const int64_t tile = (key - pair->keys.begin) / TILE_ROWS;
        while (!all && first < n_rows && seen->end[first] <= key)
            first++;
        while (!all && end < n_rows && seen->begin[end] < key + TILE_ROWS)
            end++;
        parts->first_row[tile] = (int32_t)first;
        parts->end_row[tile] = (int32_t)(all ? n_rows : end);
    }
}

#endif
