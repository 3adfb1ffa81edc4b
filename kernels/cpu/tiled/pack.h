/*
 * Copies of a block of K and V, in words and in the order in which the micro-kernel reads them.
 */
#ifndef FLASH_KERNELS_CPU_TILED_PACK_H
#define FLASH_KERNELS_CPU_TILED_PACK_H

#include "cpu/convert.h"
#include "cpu/prefetch.h"
#include "cpu/tiled/multiply.h"
#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

enum {
    TILE_COLUMNS = TILE_VECS * VEC_WIDTH,
    PACK_AHEAD = 16 /* keys: their rows lie far apart, and the processor does not foresee them */
};

/*
 * A packed matrix of words [depth][columns] is a sequence of panels [depth][TILE_COLUMNS], the last
 * one narrower: the micro-kernel walks down a panel through consecutive memory.
 */
typedef struct panel {
    int64_t offset; /* of the panel's first element */
    int64_t width;
} panel_t;

static inline panel_t panel_of(int64_t column, int64_t depth, int64_t columns) {
    const int64_t first = column / TILE_COLUMNS * TILE_COLUMNS;
    const panel_t panel = {first * depth, min64(TILE_COLUMNS, columns - first)};
    return panel;
}

/* A tile of rows' share of what follows the panel at `data`: the next one, and so on. */
static inline const char *ahead_of(const float *data, panel_t panel, int64_t depth, int64_t row) {
    return (const char *)(data + panel.width * depth) + row / TILE_ROWS * depth * AHEAD_BYTES;
}

/* K or V of one head where the caller has it, from a block's first key on. */
typedef struct tile_keys {
    const void *data;
    int64_t stride; /* elements from key to key */
} tile_keys_t;

/* Words of VEC_WIDTH keys from `key` on, those of columns `column` and on: zeros from key n_keys
 * and from column d on. */
ALWAYS_INLINE void load_k_square(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *k,
                                 int64_t key, int64_t n_keys, int64_t column,
                                 vec_t square[VEC_WIDTH]) {
    for (int i = 0; i < VEC_WIDTH; i++) {
        const void *row = element_at(k->data, (key + i) * k->stride, dtype);
        square[i] = key + i < n_keys ? words_load(dtype, row, column, t->d) : vec_zero();
    }
}

/* Brings keys first ... first + n - 1, those that there are, to the level 2 cache. */
static inline void prefetch_rows(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *keys,
                                 int64_t first, int64_t n, int64_t n_keys) {
    for (int64_t key = first; key < min64(first + n, n_keys); key++)
        prefetch_row(element_at(keys->data, key * keys->stride, dtype), t->d * element_size(dtype));
}

/* Packs K transposed: panels of [d_words][c_pad], n_keys padded with zeros to whole vectors. */
ALWAYS_INLINE void pack_k(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *k,
                          int64_t n_keys) {
    const int64_t d_words = count_words(t->d);
    for (int64_t key = 0; key < n_keys; key += VEC_WIDTH) {
        const panel_t panel = panel_of(key, d_words, t->c_pad);
        float *to = t->k + panel.offset + key % TILE_COLUMNS;
        prefetch_rows(t, dtype, k, key + PACK_AHEAD, VEC_WIDTH, n_keys);
        for (int64_t i = 0; i < d_words; i += VEC_WIDTH) {
            vec_t square[VEC_WIDTH];
            load_k_square(t, dtype, k, key, n_keys, i * WORD_ELEMENTS, square);
            vec_transpose(square);
            const int n = (int)min64(VEC_WIDTH, d_words - i);
            for (int j = 0; j < n; j++)
                vec_store(FLASH_DTYPE_FP32, to + (i + j) * panel.width, square[j]);
        }
    }
}

/* A word's keys, from number `key` on; NULL: there are no more. */
ALWAYS_INLINE void word_rows(int32_t dtype, const tile_keys_t *v, int64_t key, int64_t n_keys,
                             const void *rows[WORD_ELEMENTS]) {
    for (int i = 0; i < WORD_ELEMENTS; i++)
        rows[i] = key + i < n_keys ? element_at(v->data, (key + i) * v->stride, dtype) : NULL;
}

/* Packs V: panels of [c_words][d_pad], zeros beyond d; and notes whether all of it is finite. */
ALWAYS_INLINE void pack_v(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *v,
                          int64_t n_keys) {
    const int64_t c_words = count_words(t->c_pad), d_pad = t->d_pad;
    vec_t sum = vec_zero(); /* of zeros, where all is finite */
    for (int64_t key = 0; key < n_keys; key += WORD_ELEMENTS) {
        const void *rows[WORD_ELEMENTS];
        word_rows(dtype, v, key, n_keys, rows);
        prefetch_rows(t, dtype, v, key + PACK_AHEAD, WORD_ELEMENTS, n_keys);
        for (int64_t first = 0; first < d_pad; first += TILE_COLUMNS) {
            const panel_t panel = panel_of(first, c_words, d_pad);
            float *to = t->v + panel.offset + key / WORD_ELEMENTS * panel.width;
            for (int64_t i = 0; i < panel.width; i += WORD_ELEMENTS * VEC_WIDTH) {
                vec_t words[WORD_ELEMENTS];
                words_across(dtype, rows, first + i, t->d, words);
                for (int64_t j = 0; j < WORD_ELEMENTS && i + j * VEC_WIDTH < panel.width; j++) {
                    vec_store(FLASH_DTYPE_FP32, to + i + j * VEC_WIDTH, words[j]);
                    sum = words_multiply(words[j], vec_zero(), sum);
                }
            }
        }
    }
    *t->v_is_finite = vec_reduce_add(sum) == 0;
}

#endif
