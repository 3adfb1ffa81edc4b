/*
 * This file computes O += P V for a task that decodes. Rows of V are the right operand as they lie,
 * 16 keys by 32 columns a tile. A tile product sums over pairs of the right operand's elements
 * (TDPBF16PS, Intel SDM volume 2), which here are two columns of a key. So P is there twice: paired
 * with zeros for the odd columns, and with zeros for the even ones. Infinity or NaN in one column
 * makes NaN of its neighbour; then even and odd columns are computed apart.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_VALUES_H
#define FLASH_KERNELS_CPU_AMX_DECODE_VALUES_H

#include "cpu/amx_decode/scores.h"

#include <string.h>

/* The P V of a block is pending until the scores of the next block are computed, so that tile loads
 * of P do not wait for its stores. */
typedef struct decode_pending {
    float *o; /* NULL: none */
    in_place_t v;
} decode_pending_t;

/* Loads P of the block: R rows for even columns, then R for odd ones, which have registers of their
 * own where R is 16. */
ALWAYS_INLINE void decode_load_p(const uint16_t *p, int R) {
    const uint16_t *last = p + 2 * R * AMX_SQUARE;
    _tile_loadd(3, p, TILE_ROW_BYTES);
    _tile_loadd(4, last, TILE_ROW_BYTES);
    if (R == TILE_ROWS_MAX) {
        _tile_loadd(6, p + R * AMX_SQUARE, TILE_ROW_BYTES);
        _tile_loadd(7, last + R * AMX_SQUARE, TILE_ROW_BYTES);
    }
}

/* Adds P V to 32 columns of O. */
ALWAYS_INLINE void decode_add(const char *v, int64_t stride, const float *o, float *to, int R) {
    const bool in_two = R == TILE_ROWS_MAX;
    _tile_loadd(5, o, TILE_ROW_BYTES);
    if (in_two)
        _tile_loadd(0, o + R * VEC_WIDTH, TILE_ROW_BYTES);
    _tile_loadd(1, v, stride);
    _tile_dpbf16ps(5, 3, 1);
    if (in_two)
        _tile_dpbf16ps(0, 6, 1);
    _tile_loadd(1, v + 16 * stride, stride);
    _tile_dpbf16ps(5, 4, 1);
    _tile_stored(5, to, TILE_ROW_BYTES);
    if (in_two) {
        _tile_dpbf16ps(0, 7, 1);
        _tile_stored(0, to + R * VEC_WIDTH, TILE_ROW_BYTES);
    }
}

/* Adds P V to 32 columns of O: to the even ones with zeros in V's odd ones, and vice versa. */
NEVER_INLINE void decode_add_apart(const char *v, int64_t stride, float *o, int R) {
    _Alignas(64) uint16_t column[AMX_SQUARE][AMX_SQUARE];
    _Alignas(64) float sums[2][2 * TILE_ROWS_MAX][VEC_WIDTH];
    for (int odd = 0; odd < 2; odd++) {
        const words_t kept = _mm512_set1_epi32(odd ? -0x10000 : 0xffff);
        for (int i = 0; i < AMX_SQUARE; i++)
            _mm512_store_si512(column[i],
                               _mm512_and_si512(_mm512_loadu_si512(v + i * stride), kept));
        tiles_see_stores();
        decode_add((const char *)column, TILE_ROW_BYTES, o, sums[odd][0], R);
        tiles_see_stores();
    }
    for (int i = 0; i < 2 * R; i++)
        memcpy(o + i * VEC_WIDTH, sums[i >= R][i], sizeof sums[0][i]);
}

ALWAYS_INLINE void decode_add_pending(const decode_scratch_t *t, const decode_pending_t *pending,
                                      const in_place_t *next, int R) {
    const int64_t share = AMX_DECODE_PREFETCH_ROWS / t->v_columns;
    decode_load_p(t->p, R);
    for (int64_t c = 0; c < t->v_columns; c++) {
        const char *v = pending->v.data + c * TILE_ROW_BYTES;
        float *o = pending->o + 2 * c * R * VEC_WIDTH;
        if (t->apart)
            decode_add_apart(v, pending->v.stride * 2, o, R);
        else
            decode_add(v, pending->v.stride * 2, o, o, R);
        if (next)
            decode_prefetch_v(t, next, c * share, (c + 1) * share);
    }
}

/* Adds what is pending, if anything is, and prefetches the next block, unless it is NULL. */
ALWAYS_INLINE void decode_values(const decode_scratch_t *t, decode_pending_t *pending,
                                 const in_place_t *next, int R) {
    int64_t n_prefetched = 0;
    tiles_see_stores();
    if (pending->o) {
        decode_add_pending(t, pending, next, R);
        n_prefetched += AMX_DECODE_PREFETCH_ROWS / t->v_columns * t->v_columns;
    }
    if (next)
        decode_prefetch_v(t, next, n_prefetched, AMX_DECODE_PREFETCH_ROWS);
    tiles_see_stores();
    pending->o = NULL;
}

ALWAYS_INLINE bool decode_is_finite(const decode_scratch_t *t, int64_t n_heads, int R) {
    vec_t zeros = vec_zero();
    for (int64_t i = 0; i < n_heads * t->d_v * R; i += VEC_WIDTH)
        zeros = vec_fma(_mm512_load_ps(t->o + i), vec_zero(), zeros);
    return _mm512_cmp_ps_mask(zeros, vec_zero(), _CMP_EQ_OQ) == 0xffff;
}

#endif
