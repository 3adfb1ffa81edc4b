/*
 * This is the micro-kernel of both products of packed operands, C = A B and C += A B. A tile of C
 * stays in registers; each step takes a row of B and a word of A per row.
 */
#ifndef FLASH_KERNELS_CPU_TILED_MULTIPLY_H
#define FLASH_KERNELS_CPU_TILED_MULTIPLY_H

#include "cpu/convert.h"
#include "cpu/prefetch.h"
#include "cpu/tiled/words.h"
#include "cpu/vector.h"

#include <stdbool.h>

_Static_assert(TILE_ROWS == 6 && (TILE_VECS == 2 || TILE_VECS == 4), "one case for each below");

typedef struct tile_product {
    const float *a; /* words of a row, of which row r begins at a + r * a_stride */
    int64_t a_stride;
    int64_t a_step; /* from a row's word to its next; 1, but where A is the transpose of what lies
                     * in memory */
    const float *b; /* [depth][vecs * VEC_WIDTH] words */
    int64_t b_stride;
    float *c; /* [rows][vecs * VEC_WIDTH] */
    int64_t c_stride;
    int64_t depth;
    bool accumulate;      /* C += A B, added after A B is complete, so that sums are short */
    const char *prefetch; /* PANEL_PREFETCH_BYTES from here are prefetched in each step of depth */
} tile_product_t;

/* Computes a tile; rows and vecs are constants at each call. */
ALWAYS_INLINE void multiply_tile(const tile_product_t *product, const int rows, const int vecs) {
    vec_t c[TILE_ROWS][TILE_VECS];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vecs; v++) c[r][v] = vec_zero();
    }
    const float *a = product->a, *b = product->b;
    const char *prefetch = product->prefetch;
    for (int64_t k = 0; k < product->depth; k++) {
        vec_t b_row[TILE_VECS];
        UNROLL for (int v = 0; v < vecs; v++) b_row[v] =
            vec_load(FLASH_DTYPE_FP32, b + v * VEC_WIDTH);
        UNROLL for (int r = 0; r < rows; r++) {
            const vec_t a_word = vec_set1(a[r * product->a_stride]);
            UNROLL for (int v = 0; v < vecs; v++) c[r][v] =
                words_multiply(a_word, b_row[v], c[r][v]);
        }
        prefetch_line(prefetch);
        prefetch += PANEL_PREFETCH_BYTES;
        a += product->a_step;
        b += product->b_stride;
    }
    if (product->accumulate) {
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int v = 0; v < vecs; v++) c[r][v] =
                vec_add(c[r][v], vec_load(FLASH_DTYPE_FP32,
                                          product->c + r * product->c_stride + v * VEC_WIDTH));
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vecs; v++) vec_store(
            FLASH_DTYPE_FP32, product->c + r * product->c_stride + v * VEC_WIDTH, c[r][v]);
    }
}

ALWAYS_INLINE void multiply_columns(const tile_product_t *product, const int rows, int vecs) {
    if (vecs == 1)
        multiply_tile(product, rows, 1);
    else if (vecs == 2)
        multiply_tile(product, rows, 2);
#if TILE_VECS >= 4
    else if (vecs == 3)
        multiply_tile(product, rows, 3);
    else
        multiply_tile(product, rows, 4);
#endif
}

NEVER_INLINE void multiply_packed(const tile_product_t *product, int rows, int vecs) {
    switch (rows) {
    case 1:
        multiply_columns(product, 1, vecs);
        break;
    case 2:
        multiply_columns(product, 2, vecs);
        break;
    case 3:
        multiply_columns(product, 3, vecs);
        break;
    case 4:
        multiply_columns(product, 4, vecs);
        break;
    case 5:
        multiply_columns(product, 5, vecs);
        break;
    default:
        multiply_columns(product, 6, vecs);
        break;
    }
}

#endif
