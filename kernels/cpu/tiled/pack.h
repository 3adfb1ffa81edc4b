/*
 * This file packs a block of K and V: it copies them in words, in the order in which the
 * micro-kernel reads them. A packed matrix of words [depth][columns] is a sequence of panels
 * [depth][TILE_COLUMNS], the last one narrower. The micro-kernel walks down a panel through
 * consecutive memory.
 *
 *   K: depth is d_head, columns are keys             V: depth is keys, columns are d_head_v
 *
 *       panel 0         panel 1     keys ->              panel 0         panel 1     d ->
 *     +------------+ +------------+                    +------------+ +------------+
 *   d | word row 0 | | word row 0 |                key | word row 0 | | word row 0 |
 *   | | word row 1 | | word row 1 | ...              | | word row 1 | | word row 1 | ...
 *   v |    ...     | |    ...     |                  v |    ...     | |    ...     |
 *     +------------+ +------------+                    +------------+ +------------+
 *
 * In memory panel 1 begins where panel 0 ends, V begins where K ends, and a number that says
 * whether V is finite follows V (scratch.h). Where the instruction set multiplies pairs of bf16, a
 * row of words is two rows of the depth.
 */
#ifndef FLASH_KERNELS_CPU_TILED_PACK_H
#define FLASH_KERNELS_CPU_TILED_PACK_H

#include "cpu/convert.h"
#include "cpu/prefetch.h"
#include "cpu/tiled/multiply.h"
#include "cpu/tiled/scratch.h"
#include "cpu/tiled/slice.h"
#include "cpu/vector.h"

typedef struct panel {
    int64_t offset; /* of the panel's first element */
    int64_t width;
} panel_t;

static inline panel_t panel_of(int64_t column, int64_t depth, int64_t columns) {
    const int64_t first = column / TILE_COLUMNS * TILE_COLUMNS;
    const panel_t panel = {first * depth, min64(TILE_COLUMNS, columns - first)};
    return panel;
}

/* Returns where a tile of rows prefetches while it reads the panel at `data`: in its share of the
 * next. */
static inline const char *panel_prefetch(const float *data, panel_t panel, int64_t depth,
                                         int64_t row) {
    return (const char *)(data + panel.width * depth) +
           row / TILE_ROWS * depth * PANEL_PREFETCH_BYTES;
}

/* This says what of a block is packed: both, unless K and V are of two types. */
typedef struct packed_parts {
    bool k;
    bool v;
} packed_parts_t;

/* This is K or V of one head in place, from a block's first key on. */
typedef struct tile_keys {
    const void *data;
    int64_t stride; /* elements from key to key */
} tile_keys_t;

typedef struct square_corner {
    int64_t key;
    int64_t column;
} square_corner_t;

/* Loads words of VEC_WIDTH keys: zeros from key n_keys and from column d on. */
ALWAYS_INLINE void load_k_square(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *k,
                                 square_corner_t corner, int64_t n_keys, vec_t square[VEC_WIDTH]) {
    const int64_t key = corner.key, column = corner.column;
    const int64_t end = column + WORD_ELEMENTS * VEC_WIDTH;
    const char *row = element_at(k->data, key * k->stride, dtype);
    const int64_t step = k->stride * element_size(dtype);
    if (key + VEC_WIDTH <= n_keys && end <= t->d) {
        UNROLL for (int i = 0; i < VEC_WIDTH; i++) square[i] =
            words_load(dtype, row + i * step, column, end);
        return;
    }
    for (int i = 0; i < VEC_WIDTH; i++)
        square[i] = key + i < n_keys ? words_load(dtype, row + i * step, column, t->d) : vec_zero();
}

ALWAYS_INLINE void store_square(const vec_t square[VEC_WIDTH], int64_t n, float *to,
                                int64_t stride) {
    if (n == VEC_WIDTH) {
        UNROLL for (int i = 0; i < VEC_WIDTH; i++)
            vec_store(FLASH_DTYPE_FP32, to + i * stride, square[i]);
        return;
    }
    for (int i = 0; i < n; i++)
        vec_store(FLASH_DTYPE_FP32, to + i * stride, square[i]);
}

/* Prefetches keys first ... first + n - 1 of d elements, as far as there are any, to the level 2
 * cache. */
static inline void prefetch_rows(int64_t d, int32_t dtype, const tile_keys_t *keys, int64_t first,
                                 int64_t n, int64_t n_keys) {
    for (int64_t key = first; key < min64(first + n, n_keys); key++)
        prefetch_row(element_at(keys->data, key * keys->stride, dtype), key_bytes(dtype, d));
}

/* Packs K: panels of [d_words][c_pad], n_keys padded with zeros to whole vectors. */
ALWAYS_INLINE void pack_k(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *k,
                          int64_t n_keys) {
    const int64_t d_words = count_words(t->d);
    for (int64_t key = 0; key < n_keys; key += VEC_WIDTH) {
        const panel_t panel = panel_of(key, d_words, t->c_pad);
        float *to = t->k + panel.offset + key % TILE_COLUMNS;
        prefetch_rows(t->d, dtype, k, key + PACK_PREFETCH_KEYS, VEC_WIDTH, n_keys);
        for (int64_t i = 0; i < d_words; i += VEC_WIDTH) {
            vec_t square[VEC_WIDTH];
            load_k_square(t, dtype, k, (square_corner_t){key, i * WORD_ELEMENTS}, n_keys, square);
            vec_transpose(square);
            store_square(square, min64(VEC_WIDTH, d_words - i), to + i * panel.width, panel.width);
        }
    }
}

/* Finds the keys of a word, from number `key` on; NULL: there are no more. */
ALWAYS_INLINE void word_keys(int32_t dtype, const tile_keys_t *v, int64_t key, int64_t n_keys,
                             const void *keys[WORD_ELEMENTS]) {
    for (int i = 0; i < WORD_ELEMENTS; i++)
        keys[i] = key + i < n_keys ? element_at(v->data, (key + i) * v->stride, dtype) : NULL;
}

/* This is 0 where all that was noted is finite, else NaN: two sums, independent of each other. */
typedef struct finite {
    vec_t sum[2];
} finite_t;

ALWAYS_INLINE void note_words(finite_t *finite, vec_t words) {
    const vec_t first = finite->sum[0];
    finite->sum[0] = finite->sum[1];
    finite->sum[1] = words_multiply(words, vec_zero(), first);
}

ALWAYS_INLINE bool is_finite(const finite_t *finite) {
    return vec_reduce_add(vec_add(finite->sum[0], finite->sum[1])) == 0;
}

/* Packs a row of words of V, number `row`: zeros beyond d_v. */
ALWAYS_INLINE void pack_v_row(const tile_scratch_t *t, int32_t dtype,
                              const void *const keys[WORD_ELEMENTS], int64_t row,
                              finite_t *finite) {
    for (int64_t first = 0; first < t->d_v_pad; first += TILE_COLUMNS) {
        const panel_t panel = panel_of(first, count_words(t->c_pad), t->d_v_pad);
        float *to = t->v + panel.offset + row * panel.width;
        for (int64_t i = 0; i < panel.width; i += WORD_ELEMENTS * VEC_WIDTH) {
            vec_t words[WORD_ELEMENTS];
            words_across(dtype, keys, first + i, t->d_v, words);
            for (int64_t j = 0; j < WORD_ELEMENTS && i + j * VEC_WIDTH < panel.width; j++) {
                vec_store(FLASH_DTYPE_FP32, to + i + j * VEC_WIDTH, words[j]);
                note_words(finite, words[j]);
            }
        }
    }
}

/* Packs V: panels of [c_words][d_v_pad], and whether all of it is finite. */
ALWAYS_INLINE void pack_v(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *v,
                          int64_t n_keys) {
    finite_t finite = {{vec_zero(), vec_zero()}};
    for (int64_t key = 0; key < n_keys; key += WORD_ELEMENTS) {
        const void *keys[WORD_ELEMENTS];
        word_keys(dtype, v, key, n_keys, keys);
        prefetch_rows(t->d_v, dtype, v, key + PACK_PREFETCH_KEYS, WORD_ELEMENTS, n_keys);
        pack_v_row(t, dtype, keys, key / WORD_ELEMENTS, &finite);
    }
    *t->v_is_finite = is_finite(&finite);
}

#endif
