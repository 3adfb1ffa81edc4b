/*
 * Copies of a block of K and V, in fp32 and in the order in which the micro-kernel reads them.
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
 * A packed matrix [depth][columns] is a sequence of panels [depth][TILE_COLUMNS], the last one
 * narrower: the micro-kernel walks down a panel through consecutive memory.
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

/* Vectors of VEC_WIDTH keys from `key` on, columns column ... column + VEC_WIDTH - 1: zeros from
 * key n_keys and from column d on. */
ALWAYS_INLINE void load_k_square(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *k,
                                 int64_t key, int64_t n_keys, int64_t column,
                                 vec_t square[VEC_WIDTH]) {
    const int64_t n = t->d - column;
    for (int i = 0; i < VEC_WIDTH; i++) {
        const void *row = element_at(k->data, (key + i) * k->stride + column, dtype);
        if (key + i >= n_keys)
            square[i] = vec_zero();
        else if (n >= VEC_WIDTH)
            square[i] = vec_load(dtype, row);
        else
            square[i] = vec_load_first(dtype, row, (int)n);
    }
}

/* Brings keys first ... first + n - 1, those that there are, to the level 2 cache. */
static inline void prefetch_rows(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *keys,
                                 int64_t first, int64_t n, int64_t n_keys) {
    for (int64_t key = first; key < min64(first + n, n_keys); key++)
        prefetch_row(element_at(keys->data, key * keys->stride, dtype), t->d * element_size(dtype));
}

/* Packs K transposed: panels of [d][c_pad], n_keys padded with zeros to whole vectors. */
ALWAYS_INLINE void pack_k(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *k,
                          int64_t n_keys) {
    for (int64_t key = 0; key < n_keys; key += VEC_WIDTH) {
        const panel_t panel = panel_of(key, t->d, t->c_pad);
        float *to = t->k + panel.offset + key % TILE_COLUMNS;
        prefetch_rows(t, dtype, k, key + PACK_AHEAD, VEC_WIDTH, n_keys);
        for (int64_t i = 0; i < t->d; i += VEC_WIDTH) {
            vec_t square[VEC_WIDTH];
            load_k_square(t, dtype, k, key, n_keys, i, square);
            vec_transpose(square);
            const int n = (int)min64(VEC_WIDTH, t->d - i);
            for (int j = 0; j < n; j++)
                vec_store(FLASH_DTYPE_FP32, to + (i + j) * panel.width, square[j]);
        }
    }
}

/* A row of V, VEC_WIDTH elements from `column` on: zeros beyond d. */
ALWAYS_INLINE vec_t load_v(int32_t dtype, const void *row, int64_t column, int64_t d) {
    const void *from = element_at(row, column, dtype);
    if (d - column >= VEC_WIDTH)
        return vec_load(dtype, from);
    return d > column ? vec_load_first(dtype, from, (int)(d - column)) : vec_zero();
}

/* Packs V: panels of [c_pad][d_pad], zeros beyond d. */
ALWAYS_INLINE void pack_v(const tile_scratch_t *t, int32_t dtype, const tile_keys_t *v,
                          int64_t n_keys) {
    const int64_t d = t->d, d_pad = t->d_pad;
    for (int64_t key = 0; key < n_keys; key++) {
        const void *row = element_at(v->data, key * v->stride, dtype);
        prefetch_rows(t, dtype, v, key + PACK_AHEAD, 1, n_keys);
        for (int64_t first = 0; first < d_pad; first += TILE_COLUMNS) {
            const panel_t panel = panel_of(first, t->c_pad, d_pad);
            float *to = t->v + panel.offset + key * panel.width;
            for (int64_t i = 0; i < panel.width; i += VEC_WIDTH)
                vec_store(FLASH_DTYPE_FP32, to + i, load_v(dtype, row, first + i, d));
        }
    }
}

#endif
