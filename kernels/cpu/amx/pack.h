/*
 * Q, K and V in the order of the tile registers (layout.h), zeros beyond d and beyond the last key.
 *
 * Rows and keys that hold infinity or NaN are packed as zeros there, and remembered: a tile would
 * multiply what a row does not see by zero, which is not nothing then.
 */
#ifndef FLASH_KERNELS_CPU_AMX_PACK_H
#define FLASH_KERNELS_CPU_AMX_PACK_H

#include "cpu/amx/scratch.h"
#include "cpu/prefetch.h"
#include "cpu/row_cursor.h"
#include "cpu/vector.h"

#include <immintrin.h>

/* Rows of Q, K and V are asked for a square ahead: they lie far apart, and the processor does not
 * foresee them. */

/* 32 elements of 16 bits each. */
typedef __m512i words_t;

/* Those that are infinity or NaN. */
ALWAYS_INLINE __mmask32 not_finite(int32_t dtype, words_t x) {
    const words_t exponent = _mm512_set1_epi16(dtype == FLASH_DTYPE_FP16 ? 0x7c00 : 0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
}

/* Elements column ... column + 31 of a row of d, zeros beyond and in place of infinity and NaN,
 * which are added to *bad. */
ALWAYS_INLINE words_t words_load(int32_t dtype, const void *row, int64_t column, int64_t d,
                                 __mmask32 *bad) {
    const int64_t n = d - column;
    const __mmask32 present = n >= AMX_SQUARE ? 0xffffffff : (1u << n) - 1;
    const words_t x = _mm512_maskz_loadu_epi16(present, (const uint16_t *)row + column);
    const __mmask32 bad_here = not_finite(dtype, x);
    *bad |= bad_here;
    return _mm512_maskz_mov_epi16(~bad_here, x);
}

ALWAYS_INLINE vec_t low_floats(words_t bf16) {
    return vec_from_bf16(_mm512_castsi512_si256(bf16));
}

ALWAYS_INLINE vec_t high_floats(words_t bf16) {
    return vec_from_bf16(_mm512_extracti64x4_epi64(bf16, 1));
}

/* 32 floats to bf16; rounds to nearest even, subnormals to zero. */
ALWAYS_INLINE words_t words_from_floats(vec_t low, vec_t high) {
    return (words_t)_mm512_cvtne2ps_pbh(high, low);
}

/* The bf16 terms of 32 floats, the second what the first leaves. */
ALWAYS_INLINE void split_floats(vec_t low, vec_t high, int32_t terms, words_t split[2]) {
    split[0] = words_from_floats(low, high);
    if (terms == 2)
        split[1] = words_from_floats(vec_sub(low, low_floats(split[0])),
                                     vec_sub(high, high_floats(split[0])));
}

ALWAYS_INLINE void split_words(int32_t dtype, words_t x, words_t split[2]) {
    if (dtype == FLASH_DTYPE_BF16)
        split[0] = x;
    else
        split_floats(_mm512_cvtph_ps(_mm512_castsi512_si256(x)),
                     _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), 2, split);
}

/* ---- Squares ---- */

/* Rows of a tensor where the caller has it: a square has zeros beyond the last one. */
typedef struct amx_rows {
    const char *row[AMX_SQUARE];
    int64_t n;
} amx_rows_t;

/* A part of row number i; sets bit i of *bad where it holds infinity or NaN. */
ALWAYS_INLINE words_t load_part(const amx_scratch_t *t, int32_t dtype, const amx_rows_t *rows,
                                int64_t i, int64_t column, uint32_t *bad) {
    __mmask32 bad_here = 0;
    if (i >= rows->n)
        return _mm512_setzero_si512();
    const words_t x = words_load(dtype, rows->row[i], column, t->d, &bad_here);
    *bad |= (uint32_t)(bad_here != 0) << i;
    return x;
}

/* Row number i of the squares of K that begin with `to`, as it is. */
ALWAYS_INLINE void pack_k_row(const amx_scratch_t *t, int32_t dtype, const amx_rows_t *k, int64_t i,
                              uint16_t *to, uint32_t *bad) {
    for (int64_t c = 0; c < t->columns; c++) {
        words_t split[2] = {_mm512_setzero_si512()};
        split_words(dtype, load_part(t, dtype, k, i, c * AMX_SQUARE, bad), split);
        for (int term = 0; term < t->terms; term++)
            _mm512_store_si512(to + (c * t->terms + term) * AMX_OPERANDS + i * AMX_SQUARE,
                               split[term]);
    }
}

/* Rows first ... first + 15 of a square of Q, transposed in pairs of columns: a tile a term. */
ALWAYS_INLINE void pack_q_tile(const amx_scratch_t *t, int32_t dtype, const amx_rows_t *q,
                               int64_t first, int64_t column, uint16_t *to, uint32_t *bad) {
    vec_t tile[2][16];
    for (int i = 0; i < 16; i++) {
        words_t split[2] = {_mm512_setzero_si512()};
        split_words(dtype, load_part(t, dtype, q, first + i, column, bad), split);
        for (int term = 0; term < t->terms; term++)
            tile[term][i] = _mm512_castsi512_ps(split[term]);
    }
    for (int term = 0; term < t->terms; term++) {
        vec_transpose(tile[term]);
        for (int i = 0; i < 16; i++)
            _mm512_store_ps(to + term * AMX_OPERANDS + i * AMX_SQUARE, tile[term][i]);
    }
}

/* Elements 0 ... 15 and 16 ... 31 of two rows, alternating. */
ALWAYS_INLINE void interleave(words_t a, words_t b, words_t alternating[2]) {
    const words_t pairs = _mm512_set1_epi32(0x00200000); /* elements 0 of a and of b */
    const words_t lanes =
        _mm512_setr_epi32(0x00000, 0x10001, 0x20002, 0x30003, 0x40004, 0x50005, 0x60006, 0x70007,
                          0x80008, 0x90009, 0xa000a, 0xb000b, 0xc000c, 0xd000d, 0xe000e, 0xf000f);
    const words_t low = _mm512_add_epi16(pairs, lanes);
    alternating[0] = _mm512_permutex2var_epi16(a, low, b);
    alternating[1] = _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, _mm512_set1_epi16(16)), b);
}

/* The 16 x 16 pairs of words of a tile. */
ALWAYS_INLINE void transpose_tile(uint16_t *tile) {
    vec_t rows[16];
    for (int i = 0; i < 16; i++)
        rows[i] = _mm512_load_ps(tile + i * AMX_SQUARE);
    vec_transpose(rows);
    for (int i = 0; i < 16; i++)
        _mm512_store_ps(tile + i * AMX_SQUARE, rows[i]);
}

/* A square of V^T: a tile for each half of the columns. */
ALWAYS_INLINE void pack_v_square(const amx_scratch_t *t, int32_t dtype, const amx_rows_t *v,
                                 int64_t column, uint16_t *to, uint32_t *bad) {
    for (int i = 0; i < AMX_SQUARE; i += 2) {
        words_t split[2][2] = {{_mm512_setzero_si512()}};
        for (int j = 0; j < 2; j++)
            split_words(dtype, load_part(t, dtype, v, i + j, column, bad), split[j]);
        for (int term = 0; term < t->terms; term++) {
            uint16_t *row = to + term * AMX_OPERANDS + i / 2 * AMX_SQUARE;
            words_t halves[2];
            interleave(split[0][term], split[1][term], halves);
            _mm512_store_si512(row, halves[0]);
            _mm512_store_si512(row + AMX_OPERANDS / 2, halves[1]);
        }
    }
    for (int i = 0; i < 2 * t->terms; i++)
        transpose_tile(to + i * AMX_OPERANDS / 2);
}

/* ---- Q ---- */

/* Fills Q, and sets the bits of bad rows: bit r of bad[s] is row r of strip s. */
ALWAYS_INLINE void pack_q(const amx_scratch_t *t, const flash_params_t *p, const cpu_task_t *task,
                          int32_t dtype, uint32_t bad[AMX_STRIPS_MAX]) {
    const int64_t share = (AMX_SQUARE + t->columns - 1) / t->columns;
    row_cursor_t ahead = cursor_at_rows(p, task, dtype, t->d, p->q, &p->q_stride);
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < AMX_SQUARE; row++)
        prefetch_next(&ahead);
    for (int64_t strip = 0; strip < t->n_strips; strip++) {
        amx_rows_t rows = {.n = min64(t->n_rows - strip * AMX_SQUARE, AMX_SQUARE)};
        for (int64_t i = 0; i < rows.n; i++, r = cpu_next_row(p, task, r))
            rows.row[i] = element_at(p->q, cpu_row_index(task, &p->q_stride, r), dtype);
        for (int64_t c = 0; c < t->columns; c++) {
            uint16_t *to = t->q + (strip * t->columns + c) * t->terms * AMX_OPERANDS;
            for (int64_t i = 0; i < share; i++)
                prefetch_next(&ahead);
            pack_q_tile(t, dtype, &rows, 0, c * AMX_SQUARE, to, &bad[strip]);
            pack_q_tile(t, dtype, &rows, 16, c * AMX_SQUARE, to + AMX_OPERANDS / 2, &bad[strip]);
        }
    }
}

/* ---- K and V ---- */

/* Packed K and V of a block (layout.h). */
typedef struct amx_block {
    uint16_t *k;
    uint16_t *v;
    uint32_t *bad; /* [keys], a bit for each key of a square */
} amx_block_t;

ALWAYS_INLINE amx_block_t amx_block_at(const amx_scratch_t *t, void *packed, int64_t index) {
    const int64_t part = t->keys * t->columns * t->terms * AMX_OPERANDS;
    uint16_t *k = (uint16_t *)packed + index * t->block_size;
    const amx_block_t block = {k, k + part, (uint32_t *)(void *)(k + 2 * part)};
    return block;
}

ALWAYS_INLINE uint16_t *k_square(const amx_scratch_t *t, const amx_block_t *block, int64_t key,
                                 int64_t column) {
    return block->k + (key * t->columns + column) * t->terms * AMX_OPERANDS;
}

ALWAYS_INLINE uint16_t *v_square(const amx_scratch_t *t, const amx_block_t *block, int64_t key,
                                 int64_t column) {
    return block->v + (column * t->keys + key) * t->terms * AMX_OPERANDS;
}

/* The first keys of a range, of the task's head in K or V. */
ALWAYS_INLINE amx_rows_t first_keys(const void *data, const flash_strides_t *stride,
                                    const cpu_task_t *task, int32_t dtype, flash_range_t keys) {
    amx_rows_t rows = {.n = min64((int64_t)keys.end - keys.begin, AMX_SQUARE)};
    const char *row = element_at(data, cpu_key_index(task, stride, keys.begin), dtype);
    for (int64_t i = 0; i < rows.n; i++, row += stride->seq * element_size(dtype))
        rows.row[i] = row;
    return rows;
}

ALWAYS_INLINE amx_rows_t k_rows(const flash_params_t *p, const cpu_task_t *task, int32_t dtype,
                                flash_range_t keys) {
    return first_keys(p->k, &p->k_stride, task, dtype, keys);
}

ALWAYS_INLINE amx_rows_t v_rows(const flash_params_t *p, const cpu_task_t *task, int32_t dtype,
                                flash_range_t keys) {
    return first_keys(p->v, &p->v_stride, task, dtype, keys);
}

/* Asks for rows first ... first + n - 1, those that there are. */
ALWAYS_INLINE void request_rows(const amx_scratch_t *t, const amx_rows_t *rows, int64_t first,
                                int64_t n) {
    for (int64_t i = first; i < min64(first + n, rows->n); i++)
        prefetch_row(rows->row[i], t->d * (int64_t)sizeof(uint16_t));
}

/* Packs keys.begin ... keys.end - 1, which begin a block. */
ALWAYS_INLINE void pack_block(const amx_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, int32_t dtype, flash_range_t keys,
                              const amx_block_t *block) {
    const int64_t share = (AMX_SQUARE + t->columns - 1) / t->columns;
    amx_rows_t k = k_rows(p, task, dtype, keys), v = v_rows(p, task, dtype, keys);
    request_rows(t, &k, 0, AMX_SQUARE);
    request_rows(t, &v, 0, AMX_SQUARE);
    for (int64_t j = 0; keys.begin < keys.end; j++) {
        uint32_t bad = 0;
        keys.begin += AMX_SQUARE;
        const amx_rows_t next_k = k_rows(p, task, dtype, keys);
        const amx_rows_t next_v = v_rows(p, task, dtype, keys);
        for (int64_t i = 0; i < AMX_SQUARE; i++) {
            request_rows(t, &next_k, i, 1);
            pack_k_row(t, dtype, &k, i, k_square(t, block, j, 0), &bad);
        }
        for (int64_t c = 0; c < t->columns; c++) {
            request_rows(t, &next_v, c * share, share);
            pack_v_square(t, dtype, &v, c * AMX_SQUARE, v_square(t, block, j, c), &bad);
        }
        block->bad[j] = bad;
        k = next_k;
        v = next_v;
    }
}

#endif
