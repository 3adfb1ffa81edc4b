/*
 * This file packs Q, K and V in the order of the tile registers (layout.h), with zeros beyond d and
 * beyond the last key. Rows are read one after the other, each from its beginning to its end, as
 * the processor predicts best, and are prefetched AMX_PREFETCH_ROWS before.
 *
 * Rows and keys that hold infinity or NaN are packed as zeros, and noted: a tile product multiplies
 * what a row does not see by zero, which would give NaN.
 */
#ifndef FLASH_KERNELS_CPU_AMX_PACK_H
#define FLASH_KERNELS_CPU_AMX_PACK_H

#include "cpu/amx/read.h"
#include "cpu/row_cursor.h"

/* ---- Squares side by side ---- */

/* Stores row i of the squares that begin at `to`, as it is. */
ALWAYS_INLINE void put_row(amx_reader_t *reader, const char *row, int64_t i, uint16_t *to) {
    to += i * AMX_SQUARE;
    for (int64_t c = 0; c < reader->d; c += AMX_SQUARE, to += reader->terms * AMX_OPERANDS) {
        words_t split[AMX_TERMS_MAX] = {_mm512_setzero_si512()};
        read_part(reader, row, i, c, split);
        for (int term = 0; term < reader->terms; term++)
            _mm512_store_si512(to + term * AMX_OPERANDS, split[term]);
    }
}

/* Interleaves two rows: elements 0 ... 15 of both, and 16 ... 31 of both. */
ALWAYS_INLINE void interleave(words_t a, words_t b, words_t alternating[2]) {
    const words_t pairs = _mm512_set1_epi32(0x00200000); /* elements 0 of a and of b */
    const words_t lanes =
        _mm512_setr_epi32(0x00000, 0x10001, 0x20002, 0x30003, 0x40004, 0x50005, 0x60006, 0x70007,
                          0x80008, 0x90009, 0xa000a, 0xb000b, 0xc000c, 0xd000d, 0xe000e, 0xf000f);
    const words_t low = _mm512_add_epi16(pairs, lanes);
    alternating[0] = _mm512_permutex2var_epi16(a, low, b);
    alternating[1] = _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, _mm512_set1_epi16(16)), b);
}

/* Interleaves rows i and i + 1: row i / 2 of both tiles of each square. */
ALWAYS_INLINE void put_pair(amx_reader_t *reader, const char *row, const char *next, int64_t i,
                            uint16_t *to) {
    to += i / 2 * AMX_SQUARE;
    for (int64_t c = 0; c < reader->d; c += AMX_SQUARE, to += reader->terms * AMX_OPERANDS) {
        words_t a[2] = {_mm512_setzero_si512()}, b[2] = {_mm512_setzero_si512()}, halves[2];
        read_part(reader, row, i, c, a);
        read_part(reader, next, i + 1, c, b);
        for (int term = 0; term < reader->terms; term++) {
            interleave(a[term], b[term], halves);
            _mm512_store_si512(to + term * AMX_OPERANDS, halves[0]);
            _mm512_store_si512(to + term * AMX_OPERANDS + AMX_OPERANDS / 2, halves[1]);
        }
    }
}

/* Transposes the 16 x 16 pairs of bf16 of a tile. */
ALWAYS_INLINE void transpose_tile(const uint16_t *from, uint16_t *to) {
    vec_t rows[16];
    for (int i = 0; i < 16; i++)
        rows[i] = _mm512_load_ps(from + i * AMX_SQUARE);
    vec_transpose(rows);
    for (int i = 0; i < 16; i++)
        _mm512_store_ps(to + i * AMX_SQUARE, rows[i]);
}

/* Transposes the tiles of `from`, with the given columns and terms. The squares of one column
 * and those of the next one lie `step` elements apart. */
ALWAYS_INLINE void transpose_squares(const uint16_t *from, int64_t columns, int32_t terms,
                                     uint16_t *to, int64_t step) {
    const int64_t size = terms * AMX_OPERANDS;
    for (int64_t c = 0; c < columns; c++, from += size, to += step)
        for (int64_t i = 0; i < size; i += AMX_OPERANDS / 2)
            transpose_tile(from + i, to + i);
}

/* ---- Q ---- */

/* Packs the next strip, and prefetches as many rows. Returns the bits of bad rows if careful;
 * otherwise whether there are any. */
ALWAYS_INLINE uint32_t pack_strip(const amx_scratch_t *t, int32_t dtype, bool careful,
                                  row_cursor_t *q, row_cursor_t *prefetch, uint16_t *to) {
    amx_reader_t reader = amx_reader(t, dtype, careful);
    for (int64_t i = 0; i < AMX_SQUARE; i++) {
        prefetch_next_near(prefetch);
        put_row(&reader, cursor_next(q), i, t->rows);
    }
    transpose_squares(t->rows, t->columns, reader.terms, to, reader.terms * AMX_OPERANDS);
    return careful ? reader.bad : needs_care(&reader);
}

NEVER_INLINE uint32_t pack_strip_with_care(const amx_scratch_t *t, int32_t dtype, row_cursor_t q,
                                           uint16_t *to) {
    row_cursor_t none = {.n_left = 0};
    return pack_strip(t, dtype, true, &q, &none, to);
}

/* Packs Q of a type of 16 bits. Bit r of bad[s] is set if row r of strip s is bad. */
ALWAYS_INLINE void pack_q(const amx_scratch_t *t, const flash_params_t *p, const cpu_task_t *task,
                          int32_t dtype, uint32_t bad[AMX_STRIPS_MAX]) {
    row_cursor_t q = cursor_at_rows(p, task, dtype, t->d, p->q, &p->q_stride), prefetch = q;
    uint16_t *to = t->q;
    for (int64_t i = 0; i < AMX_PREFETCH_ROWS; i++)
        prefetch_next_near(&prefetch);
    for (int64_t strip = 0; strip < t->n_strips; strip++) {
        const row_cursor_t first = q;
        bad[strip] = pack_strip(t, dtype, false, &q, &prefetch, to);
        if (bad[strip])
            bad[strip] = pack_strip_with_care(t, dtype, first, to);
        to += t->columns * amx_terms_of(dtype) * AMX_OPERANDS;
    }
}

NEVER_INLINE void pack_q_fp32(const amx_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, uint32_t bad[AMX_STRIPS_MAX]) {
    const int32_t dtype = FLASH_DTYPE_FP32;
    row_cursor_t q = cursor_at_rows(p, task, dtype, t->d, p->q, &p->q_stride), prefetch = q;
    uint16_t *to = t->q;
    for (int64_t i = 0; i < AMX_PREFETCH_ROWS; i++)
        prefetch_next_near(&prefetch);
    for (int64_t strip = 0; strip < t->n_strips; strip++) {
        bad[strip] = pack_strip(t, dtype, true, &q, &prefetch, to);
        to += t->columns * amx_terms_of(dtype) * AMX_OPERANDS;
    }
}

/* ---- K and V ---- */

/* This is a block of packed keys (layout.h). */
typedef struct amx_block {
    uint16_t *k;
    uint16_t *v;
    uint32_t *bad; /* [keys], a bit for each key of a square */
} amx_block_t;

ALWAYS_INLINE amx_block_t amx_block_at(const amx_scratch_t *t, void *packed, int64_t index) {
    const int64_t column = t->keys * t->terms.keys * AMX_OPERANDS;
    uint16_t *k = (uint16_t *)packed + index * t->block_size;
    uint16_t *v = k + t->columns * column;
    const amx_block_t block = {k, v, (uint32_t *)(void *)(v + t->v_columns * column)};
    return block;
}

ALWAYS_INLINE uint16_t *k_square(const amx_scratch_t *t, const amx_block_t *block, int64_t key,
                                 int64_t column) {
    return block->k + (key * t->columns + column) * t->terms.keys * AMX_OPERANDS;
}

ALWAYS_INLINE uint16_t *v_square(const amx_scratch_t *t, const amx_block_t *block, int64_t key,
                                 int64_t column) {
    return block->v + (column * t->keys + key) * t->terms.keys * AMX_OPERANDS;
}

typedef struct keys_cursor {
    row_cursor_t k;
    row_cursor_t v;
} keys_cursor_t;

ALWAYS_INLINE keys_cursor_t cursor_at_both(const amx_scratch_t *t, const flash_params_t *p,
                                           const cpu_task_t *task, int32_t dtype,
                                           flash_range_t keys) {
    const keys_cursor_t both = {cursor_at_keys(task, dtype, t->d, p->k, &p->k_stride, keys),
                                cursor_at_keys(task, dtype, t->d_v, p->v, &p->v_stride, keys)};
    return both;
}

ALWAYS_INLINE keys_cursor_t cursor_at_pages_of_both(const amx_scratch_t *t, const paged_keys_t *k,
                                                    const paged_keys_t *v, flash_range_t keys) {
    const keys_cursor_t both = {cursor_at_pages(k, t->d, keys), cursor_at_pages(v, t->d_v, keys)};
    return both;
}

/* These are the next keys to pack, and those to prefetch, AMX_PREFETCH_ROWS before them. */
typedef struct keys_walk {
    keys_cursor_t next;
    keys_cursor_t prefetch;
} keys_walk_t;

/* Packs the next keys as square j of a block, and prefetches as many. Returns the bits of bad keys
 * if careful; otherwise whether there are any. */
ALWAYS_INLINE uint32_t pack_square(const amx_scratch_t *t, int32_t dtype, bool careful,
                                   keys_walk_t *keys, const amx_block_t *block, int64_t j) {
    amx_reader_t reader = amx_reader(t, dtype, careful);
    uint16_t *k = k_square(t, block, j, 0);
    for (int64_t i = 0; i < AMX_SQUARE; i++) {
        prefetch_next_near(&keys->prefetch.k);
        put_row(&reader, cursor_next(&keys->next.k), i, k);
    }
    reader.d = t->d_v;
    for (int64_t i = 0; i < AMX_SQUARE; i += 2) {
        prefetch_next_near(&keys->prefetch.v);
        prefetch_next_near(&keys->prefetch.v);
        const char *row = cursor_next(&keys->next.v);
        put_pair(&reader, row, cursor_next(&keys->next.v), i, t->rows);
    }
    transpose_squares(t->rows, t->v_columns, reader.terms, v_square(t, block, j, 0),
                      t->keys * reader.terms * AMX_OPERANDS);
    return careful ? reader.bad : needs_care(&reader);
}

NEVER_INLINE uint32_t pack_square_with_care(const amx_scratch_t *t, int32_t dtype,
                                            keys_cursor_t keys, const amx_block_t *block,
                                            int64_t j) {
    keys_walk_t walk = {.next = keys}; /* nothing is prefetched */
    return pack_square(t, dtype, true, &walk, block, j);
}

/* Packs a block of keys, which begins at `begin`. */
ALWAYS_INLINE void pack_walk(const amx_scratch_t *t, int32_t dtype, const keys_cursor_t *begin,
                             const amx_block_t *block) {
    keys_walk_t walk = {*begin, *begin};
    for (int64_t i = 0; i < AMX_PREFETCH_ROWS; i++) {
        prefetch_next_near(&walk.prefetch.k);
        prefetch_next_near(&walk.prefetch.v);
    }
    for (int64_t j = 0; walk.next.k.n_left > 0; j++) {
        const keys_cursor_t first = walk.next;
        block->bad[j] = pack_square(t, dtype, false, &walk, block, j);
        if (block->bad[j])
            block->bad[j] = pack_square_with_care(t, dtype, first, block, j);
    }
}

/* Packs a block of keys of a type, the same at each call in a file. */
NEVER_INLINE void pack_block(const amx_scratch_t *t, const flash_params_t *p,
                             const cpu_task_t *task, int32_t dtype, flash_range_t keys,
                             const amx_block_t *block) {
    const paged_keys_t k = {p, task, cpu_kv_k(p), dtype}, v = {p, task, cpu_kv_v(p), dtype};
    const keys_cursor_t begin = cpu_is_paged(p) ? cursor_at_pages_of_both(t, &k, &v, keys)
                                                : cursor_at_both(t, p, task, dtype, keys);
    pack_walk(t, dtype, &begin, block);
}

#endif
