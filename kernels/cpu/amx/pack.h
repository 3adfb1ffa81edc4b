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

/* Rows of Q, K and V are asked for so far ahead: they lie far apart, and the processor does not
 * foresee them. */
enum { ROWS_AHEAD = 32 };

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

/* ---- Q ---- */

/* Packs a row; returns whether it holds infinity or NaN, which leave zeros. */
ALWAYS_INLINE bool pack_q_row(const amx_scratch_t *t, int32_t dtype, const void *from,
                              int64_t row) {
    __mmask32 bad = 0;
    const int64_t strip = row / AMX_SQUARE;
    for (int64_t c = 0; c < t->columns; c++) {
        words_t split[2] = {_mm512_setzero_si512()};
        split_words(dtype, words_load(dtype, from, c * AMX_SQUARE, t->d, &bad), split);
        for (int i = 0; i < t->terms; i++)
            _mm512_store_si512(t->q + ((strip * t->columns + c) * t->terms + i) * AMX_OPERANDS +
                                   row % AMX_SQUARE * AMX_SQUARE,
                               split[i]);
    }
    return bad != 0;
}

/* Fills Q, and sets the bits of bad rows: bit r of bad[s] is row r of strip s. Rows that the last
 * strip lacks are zeros. */
ALWAYS_INLINE void pack_q(const amx_scratch_t *t, const flash_params_t *p, const cpu_task_t *task,
                          int32_t dtype, uint32_t bad[AMX_STRIPS_MAX]) {
    const int64_t strip = t->columns * t->terms * AMX_OPERANDS;
    row_cursor_t ahead = cursor_at_rows(p, task, dtype, t->d, p->q, &p->q_stride);
    cpu_row_t r = cpu_row(p, task, 0);
    memset(t->q + (t->n_strips - 1) * strip, 0, (size_t)strip * sizeof *t->q);
    for (int64_t row = 0; row < ROWS_AHEAD; row++)
        prefetch_next(&ahead);
    for (int64_t row = 0; row < t->n_rows; row++, r = cpu_next_row(p, task, r)) {
        const void *from = element_at(p->q, cpu_row_index(task, &p->q_stride, r), dtype);
        prefetch_next(&ahead);
        if (pack_q_row(t, dtype, from, row))
            bad[row / AMX_SQUARE] |= 1u << row % AMX_SQUARE;
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

/* K or V of one head where the caller has it, from a square's first key on. */
typedef struct amx_keys {
    const char *data;
    int64_t stride; /* bytes from key to key */
    int64_t n_keys; /* zeros beyond */
} amx_keys_t;

/* A part of key number i; sets bit i of *bad where it holds infinity or NaN. */
ALWAYS_INLINE words_t load_key(const amx_scratch_t *t, int32_t dtype, const amx_keys_t *from,
                               int64_t i, int64_t column, uint32_t *bad) {
    __mmask32 bad_here = 0;
    if (i >= from->n_keys)
        return _mm512_setzero_si512();
    const words_t x = words_load(dtype, from->data + i * from->stride, column, t->d, &bad_here);
    *bad |= (uint32_t)(bad_here != 0) << i;
    return x;
}

/* Keys first ... first + 15 of a square of K, transposed in pairs of columns: a tile a term. */
ALWAYS_INLINE void pack_k_tile(const amx_scratch_t *t, int32_t dtype, const amx_keys_t *k,
                               int64_t first, int64_t column, uint16_t *to, uint32_t *bad) {
    vec_t tile[2][16];
    for (int i = 0; i < 16; i++) {
        words_t split[2] = {_mm512_setzero_si512()};
        split_words(dtype, load_key(t, dtype, k, first + i, column, bad), split);
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

/* A square of V: pairs of keys interleaved, a tile for each half of the columns. */
ALWAYS_INLINE void pack_v_square(const amx_scratch_t *t, int32_t dtype, const amx_keys_t *v,
                                 int64_t column, uint16_t *to, uint32_t *bad) {
    for (int i = 0; i < AMX_SQUARE; i += 2) {
        words_t split[2][2] = {{_mm512_setzero_si512()}};
        for (int j = 0; j < 2; j++)
            split_words(dtype, load_key(t, dtype, v, i + j, column, bad), split[j]);
        for (int term = 0; term < t->terms; term++) {
            uint16_t *row = to + term * AMX_OPERANDS + i / 2 * AMX_SQUARE;
            words_t halves[2];
            interleave(split[0][term], split[1][term], halves);
            _mm512_store_si512(row, halves[0]);
            _mm512_store_si512(row + AMX_OPERANDS / 2, halves[1]);
        }
    }
}

ALWAYS_INLINE amx_keys_t keys_from(const void *data, const flash_strides_t *stride,
                                   const cpu_task_t *task, int32_t dtype, int32_t key,
                                   int64_t n_keys) {
    const amx_keys_t keys = {element_at(data, cpu_key_index(task, stride, key), dtype),
                             stride->seq * element_size(dtype), n_keys};
    return keys;
}

/* Asks for rows `first` ... first + n - 1, those that there are. */
ALWAYS_INLINE void prefetch_keys(const amx_scratch_t *t, const amx_keys_t *from, int64_t first,
                                 int64_t n) {
    for (int64_t i = first; i < min64(first + n, from->n_keys); i++)
        prefetch_row(from->data + i * from->stride, t->d * (int64_t)sizeof(uint16_t));
}

/* Packs keys.begin ... keys.end - 1, which begin a block. */
ALWAYS_INLINE void pack_block(const amx_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, int32_t dtype, flash_range_t keys,
                              const amx_block_t *block) {
    for (int64_t j = 0; keys.begin < keys.end; j++, keys.begin += AMX_SQUARE) {
        const int64_t n_keys = keys.end - keys.begin;
        const amx_keys_t k = keys_from(p->k, &p->k_stride, task, dtype, keys.begin, n_keys);
        const amx_keys_t v = keys_from(p->v, &p->v_stride, task, dtype, keys.begin, n_keys);
        const int64_t share = (AMX_SQUARE + t->columns - 1) / t->columns;
        uint32_t bad = 0;
        if (j == 0) {
            prefetch_keys(t, &k, 0, ROWS_AHEAD);
            prefetch_keys(t, &v, 0, ROWS_AHEAD);
        }
        for (int64_t c = 0; c < t->columns; c++) {
            prefetch_keys(t, &k, ROWS_AHEAD + c * share, share);
            prefetch_keys(t, &v, ROWS_AHEAD + c * share, share);
            uint16_t *to = k_square(t, block, j, c);
            pack_k_tile(t, dtype, &k, 0, c * AMX_SQUARE, to, &bad);
            pack_k_tile(t, dtype, &k, 16, c * AMX_SQUARE, to + AMX_OPERANDS / 2, &bad);
            pack_v_square(t, dtype, &v, c * AMX_SQUARE, v_square(t, block, j, c), &bad);
        }
        block->bad[j] = bad;
    }
}

#endif
