/*
 * This file packs a block of K and V that lies in pages, as pack.h does for one run.
 */
#ifndef FLASH_KERNELS_CPU_TILED_PACK_PAGES_H
#define FLASH_KERNELS_CPU_TILED_PACK_PAGES_H

#include "cpu/row_cursor.h"
#include "cpu/tiled/pack.h"

/* These cursors are at the next key, and PACK_PREFETCH_KEYS after it, to prefetch. */
typedef struct pages_walk {
    row_cursor_t next;
    row_cursor_t prefetch;
} pages_walk_t;

static inline pages_walk_t walk_pages(const paged_keys_t *pages, int64_t d, flash_range_t keys) {
    const row_cursor_t first = cursor_at_pages(pages, d, keys);
    pages_walk_t walk = {first, first};
    for (int i = 0; i < PACK_PREFETCH_KEYS; i++)
        prefetch_next(&walk.prefetch);
    return walk;
}

/* Finds the next n rows; NULL where there are no more, and in holes. Returns whether all of them
 * are there. */
ALWAYS_INLINE bool next_rows(pages_walk_t *walk, const int n, const void *rows[]) {
    bool all = true;
    for (int i = 0; i < n; i++) {
        prefetch_next(&walk->prefetch);
        rows[i] = cursor_next(&walk->next);
        all = all && rows[i];
    }
    return all;
}

/* Loads words of VEC_WIDTH keys, as load_k_square() does. all: every row is there. */
ALWAYS_INLINE void load_k_rows(const tile_scratch_t *t, int32_t dtype,
                               const void *const rows[VEC_WIDTH], bool all, int64_t column,
                               vec_t square[VEC_WIDTH]) {
    const int64_t end = column + WORD_ELEMENTS * VEC_WIDTH;
    if (all && end <= t->d) {
        UNROLL for (int i = 0; i < VEC_WIDTH; i++) square[i] =
            words_load(dtype, rows[i], column, end);
        return;
    }
    for (int i = 0; i < VEC_WIDTH; i++)
        square[i] = rows[i] ? words_load(dtype, rows[i], column, t->d) : vec_zero();
}

ALWAYS_INLINE void pack_k_of_pages(const tile_scratch_t *t, int32_t dtype, pages_walk_t *walk) {
    const int64_t d_words = count_words(t->d);
    for (int64_t key = 0; walk->next.n_left > 0; key += VEC_WIDTH) {
        const void *rows[VEC_WIDTH];
        const panel_t panel = panel_of(key, d_words, t->c_pad);
        float *to = t->k + panel.offset + key % TILE_COLUMNS;
        const bool all = next_rows(walk, VEC_WIDTH, rows);
        for (int64_t i = 0; i < d_words; i += VEC_WIDTH) {
            vec_t square[VEC_WIDTH];
            load_k_rows(t, dtype, rows, all, i * WORD_ELEMENTS, square);
            vec_transpose(square);
            store_square(square, min64(VEC_WIDTH, d_words - i), to + i * panel.width, panel.width);
        }
    }
}

ALWAYS_INLINE void pack_v_of_pages(const tile_scratch_t *t, int32_t dtype, pages_walk_t *walk) {
    finite_t finite = {{vec_zero(), vec_zero()}};
    for (int64_t row = 0; walk->next.n_left > 0; row++) {
        const void *keys[WORD_ELEMENTS];
        next_rows(walk, WORD_ELEMENTS, keys);
        pack_v_row(t, dtype, keys, row, &finite);
    }
    *t->v_is_finite = is_finite(&finite);
}

ALWAYS_INLINE void pack_keys_of_pages(const tile_scratch_t *t, const flash_params_t *p,
                                      const cpu_task_t *task, int32_t dtype, flash_range_t keys,
                                      packed_parts_t parts) {
    const paged_keys_t k = {p, task, cpu_kv_k(p), dtype}, v = {p, task, cpu_kv_v(p), dtype};
    pages_walk_t walk;
    if (parts.k) {
        walk = walk_pages(&k, t->d, keys);
        pack_k_of_pages(t, dtype, &walk);
    }
    if (parts.v) {
        walk = walk_pages(&v, t->d_v, keys);
        pack_v_of_pages(t, dtype, &walk);
    }
}

#endif
