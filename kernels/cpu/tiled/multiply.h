/*
 * The micro-kernel of both products, C = A B and C += A B: a tile of C in registers, a row of B and
 * an element of A at a time; words of packed operands take the place of elements.
 */
#ifndef FLASH_KERNELS_CPU_TILED_MULTIPLY_H
#define FLASH_KERNELS_CPU_TILED_MULTIPLY_H

#include "cpu/convert.h"
#include "cpu/prefetch.h"
#include "cpu/tiled/pairs.h"
#include "cpu/tiled/request.h"
#include "cpu/tiled/words.h"
#include "cpu/vector.h"

#include <stdbool.h>

_Static_assert(TILE_ROWS == 6 && (TILE_VECS == 2 || TILE_VECS == 4), "one case for each below");

/* 16 tiles of rows ask for a whole panel of 64 columns while they use the one before it. */
enum { AHEAD_BYTES = 16 };

typedef struct tile_product {
    const float *a; /* [rows][depth] */
    int64_t a_stride;
    const void *b; /* [depth][vecs * VEC_WIDTH] of a type */
    int64_t b_stride;
    float *c; /* [rows][vecs * VEC_WIDTH] */
    int64_t c_stride;
    int64_t depth;
    bool accumulate;   /* C += A B */
    const char *ahead; /* what to ask for. B packed: AHEAD_BYTES each step of depth; in place: a row
                        * each step, as far apart as those of B */
    bool ahead_ends;   /* in place: the lines where rows end, too */
} tile_product_t;

/* Whose B it is: a packed one, in words, or the caller's. */
typedef struct tile_source {
    int32_t dtype;
    bool packed;
} tile_source_t;

/* Asks for this step's share; returns where the next one begins. */
ALWAYS_INLINE const char *multiply_ahead(const tile_product_t *t, tile_source_t source,
                                         const char *ahead, int vecs) {
    const int64_t size = element_size(source.dtype);
    if (source.packed) {
        prefetch_line(ahead);
        return ahead + AHEAD_BYTES;
    }
    request_part(ahead, vecs * VEC_WIDTH * size);
    if (t->ahead_ends)
        request_line(ahead + vecs * VEC_WIDTH * size - 1);
    return ahead + t->b_stride * size;
}

ALWAYS_INLINE vec_t multiply_add(tile_source_t source, vec_t a, vec_t b, vec_t c) {
    return source.packed ? words_multiply(a, b, c) : vec_fma(a, b, c);
}

/* source, rows and vecs are constants at each call; tail: 0, or elements of the last vector of B.
 */
ALWAYS_INLINE void multiply_tile(const tile_product_t *t, tile_source_t source, const int rows,
                                 const int vecs, int tail) {
    const int32_t dtype = source.dtype;
    vec_t c[TILE_ROWS][TILE_VECS];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vecs; v++) {
            const float *from = t->c + r * t->c_stride + v * VEC_WIDTH;
            c[r][v] = t->accumulate ? vec_load(FLASH_DTYPE_FP32, from) : vec_zero();
        }
    }
    const float *a = t->a;
    const char *b = t->b;
    const char *ahead = t->ahead;
    for (int64_t k = 0; k < t->depth; k++) {
        vec_t b_row[TILE_VECS];
        UNROLL for (int v = 0; v < vecs / 2 * 2; v += 2)
            load_pair(dtype, b + v * VEC_WIDTH * element_size(dtype), b_row + v);
        if (vecs % 2 != 0) {
            const void *from = b + (vecs - 1) * VEC_WIDTH * element_size(dtype);
            b_row[vecs - 1] = tail ? vec_load_first(dtype, from, tail) : vec_load(dtype, from);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const vec_t a_element = vec_set1(a[r * t->a_stride]);
            UNROLL for (int v = 0; v < vecs; v++) c[r][v] =
                multiply_add(source, a_element, b_row[v], c[r][v]);
        }
        ahead = multiply_ahead(t, source, ahead, vecs);
        a++;
        b += t->b_stride * element_size(dtype);
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vecs; v++)
            vec_store(FLASH_DTYPE_FP32, t->c + r * t->c_stride + v * VEC_WIDTH, c[r][v]);
    }
}

ALWAYS_INLINE void multiply_columns(const tile_product_t *t, tile_source_t source, const int rows,
                                    int vecs, int tail) {
    if (tail)
        multiply_tile(t, source, rows, 1, tail);
    else if (vecs == 1)
        multiply_tile(t, source, rows, 1, 0);
    else if (vecs == 2)
        multiply_tile(t, source, rows, 2, 0);
#if TILE_VECS >= 4
    else if (vecs == 3)
        multiply_tile(t, source, rows, 3, 0);
    else
        multiply_tile(t, source, rows, 4, 0);
#endif
}

/* At most TILE_ROWS x TILE_VECS; a tail comes as a single vector. */
ALWAYS_INLINE void multiply_as(const tile_product_t *t, tile_source_t source, int rows, int vecs,
                               int tail) {
    switch (rows) {
    case 1:
        multiply_columns(t, source, 1, vecs, tail);
        break;
    case 2:
        multiply_columns(t, source, 2, vecs, tail);
        break;
    case 3:
        multiply_columns(t, source, 3, vecs, tail);
        break;
    case 4:
        multiply_columns(t, source, 4, vecs, tail);
        break;
    case 5:
        multiply_columns(t, source, 5, vecs, tail);
        break;
    default:
        multiply_columns(t, source, 6, vecs, tail);
        break;
    }
}

NEVER_INLINE void multiply_packed(const tile_product_t *t, int rows, int vecs) {
    multiply_as(t, (tile_source_t){FLASH_DTYPE_FP32, true}, rows, vecs, 0);
}

#endif
