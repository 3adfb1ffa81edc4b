/*
 * This file computes O += P V where V has quantised blocks. P is multiplied by the scales of its
 * keys, for each block of columns, before the elements are multiplied by it.
 */
#ifndef FLASH_KERNELS_CPU_TILED_QUANT_VALUES_H
#define FLASH_KERNELS_CPU_TILED_QUANT_VALUES_H

#include "cpu/tiled/quant_rows.h"
#include "cpu/tiled/types.h"

_Static_assert(TILE_COLUMNS % FLASH_QUANT_BLOCK == 0 || FLASH_QUANT_BLOCK % TILE_COLUMNS == 0,
               "a tile has whole blocks, or a block whole tiles");

/* These are keys first ... first + n - 1 of the block, and rows of P and O. */
typedef struct quant_tile {
    const quant_rows_t *v;
    int32_t first;
    int32_t n;
    bool prefetches;
    int64_t row;
} quant_tile_t;

/* Multiplies P of a tile by the scales of its keys. */
ALWAYS_INLINE void weigh_rows(const tile_scratch_t *t, const int64_t d, const quant_tile_t *tile,
                              const int rows) {
    const quant_rows_t *v = tile->v;
    for (int64_t b = 0; b < d / FLASH_QUANT_BLOCK; b++) {
        const float *scales = v->scales + b * IN_PLACE_KEYS;
        for (int r = 0; r < rows; r++) {
            const float *p = t->s + (tile->row + r) * t->c_pad;
            float *to = v->weights + (b * TILE_ROWS + r) * IN_PLACE_KEYS;
            for (int32_t i = tile->first / VEC_WIDTH * VEC_WIDTH; i < tile->first + tile->n;
                 i += VEC_WIDTH)
                vec_store(FLASH_DTYPE_FP32, to + i,
                          vec_mul(vec_load(FLASH_DTYPE_FP32, p + i),
                                  vec_load(FLASH_DTYPE_FP32, scales + i)));
        }
    }
}

/* Computes O[rows][vecs vectors] += P V for columns from `column` on; dtype, rows and vecs are
 * constants at each call. */
ALWAYS_INLINE void quant_values_tile(const tile_scratch_t *t, int32_t dtype,
                                     const quant_tile_t *tile, const int64_t d, int64_t column,
                                     const int rows, const int vecs) {
    const quant_rows_t *v = tile->v;
    const int64_t b = column / FLASH_QUANT_BLOCK, first = column % FLASH_QUANT_BLOCK;
    const float *weights = v->weights + b * TILE_ROWS * IN_PLACE_KEYS;
    float *o = t->o + tile->row * d + column;
    vec_t sum[TILE_ROWS][TILE_VECS];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < vecs; i++) sum[r][i] =
            vec_load(FLASH_DTYPE_FP32, o + r * d + i * VEC_WIDTH);
    }
    for (int32_t k = tile->first; k < tile->first + tile->n; k++) {
        const char *row = v->row[k] + b * quant_block_bytes(dtype);
        vec_t element[TILE_VECS];
        UNROLL for (int i = 0; i < vecs; i++) {
            const int64_t at = first + i * VEC_WIDTH;
            element[i] =
                quant_block_elements(dtype, row + at / FLASH_QUANT_BLOCK * quant_block_bytes(dtype),
                                     at % FLASH_QUANT_BLOCK);
        }
        if (column == 0 && tile->prefetches)
            prefetch_quant_row(dtype, d, v->next[k]);
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int i = 0; i < vecs; i++) {
                const int64_t block = (first + i * VEC_WIDTH) / FLASH_QUANT_BLOCK;
                const vec_t p = vec_set1(weights[(block * TILE_ROWS + r) * IN_PLACE_KEYS + k]);
                sum[r][i] = vec_fma(p, element[i], sum[r][i]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < vecs; i++)
            vec_store(FLASH_DTYPE_FP32, o + r * d + i * VEC_WIDTH, sum[r][i]);
    }
}

ALWAYS_INLINE void quant_values_columns(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                                        const quant_tile_t *tile, const int rows) {
    int64_t column = 0;
    weigh_rows(t, d, tile, rows);
    for (; d - column >= TILE_COLUMNS; column += TILE_COLUMNS)
        quant_values_tile(t, dtype, tile, d, column, rows, TILE_VECS);
    if (column < d) /* a block, of a tile of two */
        quant_values_tile(t, dtype, tile, d, column, rows, TILE_VECS / 2);
}

ALWAYS_INLINE void quant_values_rows(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                                     const quant_tile_t *tile, int rows) {
    switch (rows) {
    case 1:
        quant_values_columns(t, dtype, d, tile, 1);
        break;
    case 2:
        quant_values_columns(t, dtype, d, tile, 2);
        break;
    case 3:
        quant_values_columns(t, dtype, d, tile, 3);
        break;
    case 4:
        quant_values_columns(t, dtype, d, tile, 4);
        break;
    case 5:
        quant_values_columns(t, dtype, d, tile, 5);
        break;
    default:
        quant_values_columns(t, dtype, d, tile, 6);
        break;
    }
}

/* Adds P V of n keys from v->column on to rows row ... row + rows - 1; common head dimensions are
 * compiled as constants. */
ALWAYS_INLINE void quant_values(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                int64_t n, int64_t row, int rows) {
    const quant_tile_t tile = {v->quantised, v->column, (int32_t)n, row == 0, row};
    if (t->d_v == 128)
        quant_values_rows(t, dtype, 128, &tile, rows);
    else if (t->d_v == 64)
        quant_values_rows(t, dtype, 64, &tile, rows);
    else
        quant_values_rows(t, dtype, t->d_v, &tile, rows);
}

NEVER_INLINE void values_q8_0(const tile_scratch_t *t, const in_place_t *v, int64_t n, int64_t row,
                              int rows) {
    quant_values(t, FLASH_DTYPE_Q8_0, v, n, row, rows);
}

NEVER_INLINE void values_q4_0(const tile_scratch_t *t, const in_place_t *v, int64_t n, int64_t row,
                              int rows) {
    quant_values(t, FLASH_DTYPE_Q4_0, v, n, row, rows);
}

/* Returns what accumulate_in_place() reads. */
static inline in_place_t quant_values_of(const tile_scratch_t *t, const quant_rows_t *rows) {
    const in_place_t v = {
        .data = rows->row[0], .prefetch = rows->row[0], .n_heads = 1, .quantised = rows};
    convert_scales(rows, t->d_v);
    return v;
}

#endif
