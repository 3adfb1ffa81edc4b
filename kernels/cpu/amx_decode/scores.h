/*
 * This file packs Q and computes S^T = K Q^T for a task that decodes. Rows of K are the left
 * operand as they lie, 16 keys by 32 columns a tile.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_SCORES_H
#define FLASH_KERNELS_CPU_AMX_DECODE_SCORES_H

#include "cpu/amx_decode/scratch.h"
#include "cpu/tiled/in_place.h"

/* ---- Q ---- */

/* Stores four rows of 16 pairs each as four of the R columns of a tile of Q^T. */
ALWAYS_INLINE void store_four_rows(vec_t pairs[4], float *to, int R) {
    transpose_quarters(pairs);
    UNROLL for (int j = 0; j < 4; j++) {
        _mm_storeu_ps(to + j * R, _mm512_castps512_ps128(pairs[j]));
        _mm_storeu_ps(to + (4 + j) * R, _mm512_extractf32x4_ps(pairs[j], 1));
        _mm_storeu_ps(to + (8 + j) * R, _mm512_extractf32x4_ps(pairs[j], 2));
        _mm_storeu_ps(to + (12 + j) * R, _mm512_extractf32x4_ps(pairs[j], 3));
    }
}

ALWAYS_INLINE void decode_pack_q(const decode_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, uint16_t *q, int R) {
    const char *rows[16];
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < t->n_rows; row++, r = cpu_next_row(p, task, r))
        rows[row] = element_at(p->q, cpu_row_index(task, &p->q_stride, r), FLASH_DTYPE_BF16);
    for (int64_t c = 0; c < t->columns; c++)
        for (int64_t first = 0; first < R; first += 4) {
            vec_t pairs[4];
            for (int64_t i = 0; i < 4; i++)
                pairs[i] = first + i < t->n_rows
                               ? _mm512_loadu_ps(rows[first + i] + c * TILE_ROW_BYTES)
                               : vec_zero();
            float *to = (float *)(void *)(q + c * AMX_SQUARE * R) + first;
            store_four_rows(pairs, to, R);
        }
}

/* ---- Prefetching ---- */

typedef struct decode_keys {
    in_place_t k, v;
} decode_keys_t;

/* These prefetch rows begin ... end - 1 of K and of V. */
ALWAYS_INLINE void decode_prefetch_k(const decode_scratch_t *t, const in_place_t *k, int64_t begin,
                                     int64_t end) {
    prefetch_next_keys(k, FLASH_DTYPE_BF16, t->d, begin, end - begin);
}

ALWAYS_INLINE void decode_prefetch_v(const decode_scratch_t *t, const in_place_t *v, int64_t begin,
                                     int64_t end) {
    prefetch_next_keys(v, FLASH_DTYPE_BF16, t->d_v, begin, end - begin);
}

/* Prefetches part i of n_parts of the rows that are left to the softmax. */
ALWAYS_INLINE void decode_prefetch_rest(const decode_scratch_t *t, const decode_keys_t *next, int i,
                                        int n_parts) {
    const int rest = IN_PLACE_KEYS - AMX_DECODE_PREFETCH_ROWS;
    const int begin = AMX_DECODE_PREFETCH_ROWS + i * rest / n_parts;
    const int end = AMX_DECODE_PREFETCH_ROWS + (i + 1) * rest / n_parts;
    decode_prefetch_k(t, &next->k, begin, end);
    decode_prefetch_v(t, &next->v, begin, end);
}

/* ---- S ---- */

/* Computes the scores of a block; those of keys i and i + 16 are neighbours. */
ALWAYS_INLINE void decode_score(const decode_scratch_t *t, const in_place_t *k,
                                const in_place_t *next, const uint16_t *q, int R) {
    const int64_t stride = k->stride * 2, share = AMX_DECODE_PREFETCH_ROWS / (2 * t->columns);
    int64_t n_prefetched = 0;
    for (int half = 0; half < 2; half++) {
        const char *tile = k->data + half * 16 * stride;
        _tile_zero(0);
        for (int64_t c = 0; c < t->columns; c++, n_prefetched += share) {
            _tile_loadd(2, q + c * AMX_SQUARE * R, R * 4);
            _tile_loadd(1, tile + c * TILE_ROW_BYTES, stride);
            decode_prefetch_k(t, next, n_prefetched, n_prefetched + share);
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, t->s + half * R, 2 * R * 4);
    }
    decode_prefetch_k(t, next, n_prefetched, AMX_DECODE_PREFETCH_ROWS);
    tiles_see_stores();
}

#endif
