/*
 * This is the micro-kernel of O += P V with V in place. It takes keys in words, as words.h has them
 * for packed ones.
 */
#ifndef FLASH_KERNELS_CPU_TILED_IN_PLACE_VALUES_H
#define FLASH_KERNELS_CPU_TILED_IN_PLACE_VALUES_H

#include "cpu/tiled/in_place.h"
#include "cpu/tiled/pairs.h"
#include "cpu/tiled/prefetch_part.h"
#include "cpu/tiled/quant_values.h"
#include "cpu/tiled/scratch.h"
#include "cpu/tiled/slice.h"
#include "cpu/tiled/types.h"
#include "cpu/tiled/words.h"

_Static_assert(TILE_ROWS == 6 && (TILE_VECS == 2 || TILE_VECS == 4), "one case for each below");

/* These are words of a head's keys, from some column on, and P of some rows. */
typedef struct value_words {
    const char *v;
    int64_t stride;   /* bytes from key to key */
    int64_t prefetch; /* bytes from a key to the one to prefetch */
    bool ends;        /* the last line of each row is prefetched, too */
    const float *p;   /* [rows][n] */
    int64_t p_stride;
    int64_t n;
    float *o; /* [rows], these columns */
} value_words_t;

/* Loads a word of keys, `vecs` vectors in the order of pairs.h, the last of n_last elements. */
ALWAYS_INLINE void load_values(int32_t dtype, const char *v, int64_t stride, const int vecs,
                               int n_last, vec_t word[TILE_VECS]) {
    const int64_t pair_bytes = 2 * VEC_WIDTH * element_size(dtype);
    const char *last = v + vecs / 2 * pair_bytes;
    UNROLL for (int i = 0; i < vecs / 2; i++)
        load_word_pair(dtype, v + i * pair_bytes, stride, word + 2 * i);
    if (vecs % 2 != 0)
        word[vecs - 1] = load_word(dtype, last, stride, n_last);
}

ALWAYS_INLINE void prefetch_values(int32_t dtype, const value_words_t *words, const char *v,
                                   const int vecs) {
    const int64_t bytes = vecs * VEC_WIDTH * element_size(dtype);
    UNROLL for (int i = 0; i < WORD_ELEMENTS; i++) {
        const char *row = v + i * words->stride + words->prefetch;
        prefetch_part(row, bytes, STEPS_NEAR);
        if (words->ends)
            prefetch_line_to(row + bytes - 1, STEPS_NEAR);
    }
}

/* Computes O[rows][vecs vectors] += P V; dtype, rows and vecs are constants at each call. The last
 * vector has n_last elements. */
ALWAYS_INLINE void values_tile(int32_t dtype, const value_words_t *words, const int64_t o_stride,
                               const int rows, const int vecs, int n_last) {
    float *o = words->o;
    vec_t sum[TILE_ROWS][TILE_VECS];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < vecs; i++) sum[r][i] =
            vec_load(FLASH_DTYPE_FP32, o + r * o_stride + i * VEC_WIDTH);
    }
    const char *v = words->v;
    for (int64_t k = 0; k < words->n; k++) {
        vec_t word[TILE_VECS];
        load_values(dtype, v, words->stride, vecs, n_last, word);
        if (prefetches_keys(dtype, rows))
            prefetch_values(dtype, words, v, vecs);
        UNROLL for (int r = 0; r < rows; r++) {
            const vec_t p = vec_set1(words->p[r * words->p_stride + k]);
            UNROLL for (int i = 0; i < vecs; i++) sum[r][i] = words_multiply(p, word[i], sum[r][i]);
        }
        v += WORD_ELEMENTS * words->stride;
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < vecs; i++)
            vec_store(FLASH_DTYPE_FP32, o + r * o_stride + i * VEC_WIDTH, sum[r][i]);
    }
}

/* Computes the columns of a slice that is not a whole one. */
ALWAYS_INLINE void values_slice(int32_t dtype, const value_words_t *words, const int64_t o_stride,
                                const int rows, slice_t slice) {
    if (slice.vecs == 1)
        values_tile(dtype, words, o_stride, rows, 1, slice.tail ? slice.tail : VEC_WIDTH);
#if TILE_VECS >= 4
    else if (slice.vecs == 2)
        values_tile(dtype, words, o_stride, rows, 2, VEC_WIDTH);
    else
        values_tile(dtype, words, o_stride, rows, 3, VEC_WIDTH);
#endif
}

/* Adds P V of the first n keys, whole words, over all columns and heads; the number of rows is a
 * constant at each call. */
ALWAYS_INLINE void values_heads(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                                const in_place_t *v, int64_t n, const row_span_t rows) {
    const int64_t d_pad = round_up(d, 16), size = element_size(dtype);
    value_words_t words = {.stride = v->stride * size,
                           .prefetch = rows.first == 0 ? v->prefetch - v->data : 0,
                           .p = t->s + rows.first * t->c_pad + v->column / WORD_ELEMENTS,
                           .p_stride = t->c_pad,
                           .n = n / WORD_ELEMENTS};
    float *o = t->o + rows.first * d_pad;
    for (int32_t head = 0; head < v->n_heads; head++) {
        int64_t column = 0;
        words.v = v->data + head * v->head_bytes;
        for (; d - column >= TILE_COLUMNS; column += TILE_COLUMNS) {
            words.ends = !v->adjoin && d - column == TILE_COLUMNS;
            words.o = o + column;
            values_tile(dtype, &words, d_pad, rows.n, TILE_VECS, VEC_WIDTH);
            words.v += TILE_COLUMNS * size;
        }
        words.ends = !v->adjoin;
        for (slice_t slice; column < d; column += slice.vecs * VEC_WIDTH) {
            slice = slice_at(d, column);
            words.o = o + column;
            values_slice(dtype, &words, d_pad, rows.n, slice);
            words.v += slice.vecs * VEC_WIDTH * size;
        }
        o += t->head_rows * d_pad;
        words.p += t->head_rows * t->c_pad;
    }
}

ALWAYS_INLINE void values_rows(const tile_scratch_t *t, int32_t dtype, const int64_t d,
                               const in_place_t *v, int64_t n, row_span_t rows) {
    switch (rows.n) {
    case 1:
        values_heads(t, dtype, d, v, n, (row_span_t){rows.first, 1});
        break;
    case 2:
        values_heads(t, dtype, d, v, n, (row_span_t){rows.first, 2});
        break;
    case 3:
        values_heads(t, dtype, d, v, n, (row_span_t){rows.first, 3});
        break;
    case 4:
        values_heads(t, dtype, d, v, n, (row_span_t){rows.first, 4});
        break;
    case 5:
        values_heads(t, dtype, d, v, n, (row_span_t){rows.first, 5});
        break;
    default:
        values_heads(t, dtype, d, v, n, (row_span_t){rows.first, 6});
        break;
    }
}

/* Adds P V of the first n keys; the common head dimension is compiled as a constant. */
ALWAYS_INLINE void values_in_place(const tile_scratch_t *t, int32_t dtype, const in_place_t *v,
                                   int64_t n, int64_t row, int rows) {
    if (t->d_v == 128)
        values_rows(t, dtype, 128, v, n, (row_span_t){row, rows});
    else
        values_rows(t, dtype, t->d_v, v, n, (row_span_t){row, rows});
}

NEVER_INLINE void values_fp32(const tile_scratch_t *t, const in_place_t *v, int64_t n, int64_t row,
                              int rows) {
    values_in_place(t, FLASH_DTYPE_FP32, v, n, row, rows);
}

NEVER_INLINE void values_fp16(const tile_scratch_t *t, const in_place_t *v, int64_t n, int64_t row,
                              int rows) {
    values_in_place(t, FLASH_DTYPE_FP16, v, n, row, rows);
}

NEVER_INLINE void values_bf16(const tile_scratch_t *t, const in_place_t *v, int64_t n, int64_t row,
                              int rows) {
    values_in_place(t, FLASH_DTYPE_BF16, v, n, row, rows);
}

NEVER_INLINE void values_e4m3(const tile_scratch_t *t, const in_place_t *v, int64_t n, int64_t row,
                              int rows) {
    values_in_place(t, FLASH_DTYPE_E4M3, v, n, row, rows);
}

/* Adds P V of the first n keys, whole words. */
ALWAYS_INLINE void accumulate_words_in_place(const tile_scratch_t *t, int32_t dtype,
                                             const in_place_t *v, int64_t n, int64_t row,
                                             int rows) {
    DTYPES_KNOWN(7); /* the others are decoded before */
    if (keys_are(dtype, FLASH_DTYPE_FP32))
        values_fp32(t, v, n, row, rows);
    else if (keys_are(dtype, FLASH_DTYPE_FP16))
        values_fp16(t, v, n, row, rows);
    else if (keys_are(dtype, FLASH_DTYPE_BF16))
        values_bf16(t, v, n, row, rows);
    else if (keys_are(dtype, FLASH_DTYPE_E4M3))
        values_e4m3(t, v, n, row, rows);
    else if (keys_are(dtype, FLASH_DTYPE_Q8_0))
        values_q8_0(t, v, n, row, rows);
    else if (keys_are(dtype, FLASH_DTYPE_Q4_0))
        values_q4_0(t, v, n, row, rows);
}

#endif
