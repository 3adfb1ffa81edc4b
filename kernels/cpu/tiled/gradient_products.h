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
#include "cpu/tiled/prefetch_run.h"
#include "cpu/tiled/slice.h"

/* P of the elements of a product's A: of row r and depth k at p[r * stride + k * step]. */
typedef struct seen_pairs {
    const float *p;
    int64_t stride;
    int64_t step;
} seen_pairs_t;

/* Returns the bits of a row's word k that are not hidden. */
static inline uint32_t seen_bits(const seen_pairs_t *seen, int r, int64_t k) {
    const float *p = seen->p + r * seen->stride + k * WORD_ELEMENTS * seen->step;
    uint32_t bits = is_hidden(p[0]) ? 0 : WORD_ELEMENTS == 1 ? 0xffffffff : 0xffff;
    for (int i = 1; i < WORD_ELEMENTS; i++)
        bits |= is_hidden(p[i * seen->step]) ? 0 : 0xffffu << 16 * i;
    return bits;
}

/* Computes C += A B as multiply_packed() does, with the same bits, but leaves out what is hidden:
 * 0 times what is not finite is NaN. Tiles add up in another order. */
NEVER_INLINE void multiply_seen(const tile_product_t *product, const seen_pairs_t *seen, int rows,
                                int vecs) {
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vecs; v++) {
            const float *b = product->b + v * VEC_WIDTH;
            float *c = product->c + r * product->c_stride + v * VEC_WIDTH;
            vec_t sum = vec_zero();
            for (int64_t k = 0; k < product->depth; k++) {
                float words[VEC_WIDTH];
                const uint32_t bits = seen_bits(seen, r, k);
                if (bits == 0)
                    continue;
                words_masked(b + k * product->b_stride, bits, VEC_WIDTH, words);
                sum = words_multiply(
                    vec_set1(product->a[r * product->a_stride + k * product->a_step]),
                    vec_load(FLASH_DTYPE_FP32, words), sum);
            }
            vec_store(FLASH_DTYPE_FP32, c, vec_add(sum, vec_load(FLASH_DTYPE_FP32, c)));
        }
    }
}

/* Does so for turned sums, a column for each key: A is Q^T or dO^T, and B is P or dS. */
static inline void multiply_seen_turned(const tile_product_t *product, const seen_pairs_t *seen,
                                        int rows, int64_t n_keys) {
    for (int64_t key = 0; key < n_keys; key++) {
        for (int r = 0; r < rows; r++) {
            float sum = 0;
            for (int64_t k = 0; k < product->depth; k++) {
                const uint32_t bits = seen_bits(seen, (int)key, k);
                float a, b;
                words_masked(product->a + r * product->a_stride + k, bits, 1, &a);
                words_masked(product->b + k * product->b_stride + key, bits, 1, &b);
                sum +=
                    fp32_from_bits(fp32_to_bits(a) << 16) * fp32_from_bits(fp32_to_bits(b) << 16);
                sum += fp32_from_bits(fp32_to_bits(a) & 0xffff0000) *
                       fp32_from_bits(fp32_to_bits(b) & 0xffff0000);
            }
            product->c[r * product->c_stride + key] += sum;
        }
    }
}

/* A matrix of a block, P or dS, times rows of B, for some of the sums' columns. */
typedef struct sums_product {
    const float *a; /* P or dS in words along the product */
    const word_rows_t *b;
    const gradient_sums_t *sums;
    float *c; /* the first row of the sums that the block adds to */
    prefetch_run_t prefetch;
} sums_product_t;

/* Adds a product whose depth, in words, and A are known. first: its first word of B. */
ALWAYS_INLINE void add_product(sums_product_t *of, tile_product_t *product, slice_t slice,
                               const seen_pairs_t *seen, int64_t first, int64_t c_row, int rows) {
    product->b = of->b->across + first * of->b->across_stride + slice.column;
    product->b_stride = of->b->across_stride;
    product->c = of->c + c_row * of->sums->stride + slice.column;
    product->c_stride = of->sums->stride;
    product->accumulate = true;
    product->prefetch =
        take_share(&of->prefetch, product_prefetch_bytes(product->depth, slice.vecs));
    if (of->b->finite)
        multiply_words(product, rows, slice.vecs);
    else
        multiply_seen(product, seen, rows, slice.vecs);
}

/* Adds dS K to a tile of rows, over the keys that any of them sees. */
ALWAYS_INLINE void add_to_rows(const gradient_parts_t *parts, const gradient_pair_t *pair,
                               sums_product_t *of, slice_t slice, int64_t row, int rows) {
    const flash_range_t any = seen_columns(pair, row, rows);
    const int64_t stride = parts->s_stride;
    const int64_t first = any.begin / WORD_ELEMENTS / PRODUCT_WORDS * PRODUCT_WORDS;
    const seen_pairs_t seen = {parts->p + row * stride + first * WORD_ELEMENTS, stride, 1};
    tile_product_t product = {.a = of->a + row * stride + first,
                              .a_stride = stride,
                              .a_step = 1,
                              .depth = product_words(any.end) - first};
    if (any.begin < any.end)
        add_product(of, &product, slice, &seen, first, row, rows);
}

/* Adds to a tile of keys, over the rows that see any of them. */
ALWAYS_INLINE void add_to_keys(const gradient_parts_t *parts, sums_product_t *of, slice_t slice,
                               int64_t key, int keys) {
    const int64_t tile = key / TILE_ROWS, stride = parts->s_stride;
    const int64_t begin = parts->first_row[tile], end = parts->end_row[tile];
    const int64_t first = begin / WORD_ELEMENTS;
    const seen_pairs_t seen = {parts->p + first * WORD_ELEMENTS * stride + key, 1, stride};
    tile_product_t product = {.a = of->a + first * stride + key,
                              .a_stride = 1,
                              .a_step = stride,
                              .depth = count_words(end) - first};
    if (begin < end)
        add_product(of, &product, slice, &seen, first, key, keys);
}

/* Computes dQ += dS K of the block's rows. dq: where their sums begin. */
NEVER_INLINE void add_to_dq(const gradient_parts_t *parts, const gradient_pair_t *pair, float *dq) {
    const int64_t n_rows = pair->rows->seen.n_rows, columns = round_up(parts->k.columns, VEC_WIDTH);
    sums_product_t of = {parts->ds_along, &parts->k, &parts->dq, dq,
                         prefetch_run_of(dq, parts->dq.stride, n_rows, pair->rows->n_next)};
    slice_t slice;
    for (int64_t column = 0; column < columns; column += slice.vecs * VEC_WIDTH) {
        slice = slice_at(columns, column);
        for (int64_t row = 0; row < n_rows; row += PRODUCT_ROWS)
            add_to_rows(parts, pair, &of, slice, row, (int)min64(PRODUCT_ROWS, n_rows - row));
    }
}

/* Adds to rows of turned sums, for a tile of keys. */
ALWAYS_INLINE void add_to_turned_rows(const gradient_parts_t *parts, sums_product_t *of,
                                      int64_t row, int64_t key, int64_t n_keys) {
    const int64_t tile = key / PRODUCT_KEYS, stride = parts->s_stride;
    const int64_t begin = parts->first_row[tile], end = parts->end_row[tile];
    const int64_t first = begin / WORD_ELEMENTS / PRODUCT_WORDS * PRODUCT_WORDS;
    const int64_t vecs = (n_keys + VEC_WIDTH - 1) / VEC_WIDTH;
    const int rows = (int)min64(PRODUCT_ROWS, round_up(of->b->columns - row, VEC_WIDTH));
    const seen_pairs_t seen = {parts->p + first * WORD_ELEMENTS * stride + key, 1, stride};
    const int64_t depth = product_words(end) - first;
    if (begin >= end)
        return;
    const tile_product_t product = {
        .a = of->b->turned + row * of->b->turned_stride + first,
        .a_stride = of->b->turned_stride,
        .a_step = 1,
        .b = of->a + first * stride + key,
        .b_stride = stride,
        .c = of->c + row * of->sums->stride + key,
        .c_stride = of->sums->stride,
        .depth = depth,
        .accumulate = true,
        .prefetch = take_share(&of->prefetch, product_prefetch_bytes(depth, vecs))};
    if (of->b->finite)
        multiply_words(&product, rows, (int)vecs);
    else
        multiply_seen_turned(&product, &seen, rows, n_keys);
}

/* Computes dK^T += Q^T dS or dV^T += dO^T P of n keys. */
NEVER_INLINE void add_to_turned(const gradient_parts_t *parts, sums_product_t *of, int64_t n) {
    for (int64_t key = 0; key < n; key += PRODUCT_KEYS)
        for (int64_t row = 0; row < of->b->columns; row += PRODUCT_ROWS)
            add_to_turned_rows(parts, of, row, key, min64(PRODUCT_KEYS, n - key));
}

/* Computes dK += dS^T Q or dV += P^T dO of n keys. */
NEVER_INLINE void add_to_keys_of(const gradient_parts_t *parts, sums_product_t *of, int64_t n) {
    if (GRADIENTS_ON_TILES) {
        add_to_turned(parts, of, n);
        return;
    }
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
    const bool all = all_see(pair, (flash_range_t){0, pair->keys.end - pair->keys.begin});
    int64_t first = 0, end = 0, n_rows = seen->n_rows;
    while (n_rows > 0 && seen->begin[n_rows - 1] >= seen->end[n_rows - 1])
        n_rows--;
    for (int64_t key = pair->keys.begin; key < pair->keys.end; key += PRODUCT_KEYS) {
        const int64_t tile = (key - pair->keys.begin) / PRODUCT_KEYS;
        while (!all && first < n_rows && seen->end[first] <= key)
            first++;
        while (!all && end < n_rows && seen->begin[end] < key + PRODUCT_KEYS)
            end++;
        parts->first_row[tile] = (int32_t)first;
        parts->end_row[tile] = (int32_t)(all ? n_rows : end);
    }
}

#endif
