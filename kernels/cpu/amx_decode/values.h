/*
 * O += P V: V is the right operand, whose rows alternate in pairs of keys. A block is added beside
 * the packing of the next one, since tile loads wait for what was just stored.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_VALUES_H
#define FLASH_KERNELS_CPU_AMX_DECODE_VALUES_H

#include "cpu/amx/pack.h"
#include "cpu/amx_decode/scores.h"

/* P and V of a block whose product is still to be added to O: it is, beside the packing of the next
 * one. */
typedef struct decode_pending {
    float *o; /* NULL: none */
    int buffer;
} decode_pending_t;

/* Tiles first ... last - 1 of the product. */
ALWAYS_INLINE void accumulate_tiles(const decode_scratch_t *t, const decode_pending_t *pending,
                                    int64_t first, int64_t last, int R) {
    for (int64_t i = first; i < last; i++) {
        float *o = pending->o + i * R * VEC_WIDTH;
        const uint16_t *v = t->v[pending->buffer] + i * (AMX_OPERANDS / 2);
        _tile_loadd(6, o, TILE_ROW_BYTES);
        _tile_loadd(5, v, TILE_ROW_BYTES);
        _tile_dpbf16ps(6, 4, 5);
        _tile_stored(6, o, TILE_ROW_BYTES);
    }
}

/* The whole product, if one is pending. */
ALWAYS_INLINE void accumulate_pending(const decode_scratch_t *t, decode_pending_t *pending, int R) {
    if (pending->o == NULL)
        return;
    tiles_see_stores();
    _tile_loadd(4, t->p[pending->buffer], TILE_ROW_BYTES);
    accumulate_tiles(t, pending, 0, 2 * t->columns, R);
    tiles_see_stores();
    pending->o = NULL;
}

/* Quarters of two rows, alternating: their elements 8 q ... 8 q + 3, or the four after these. */
ALWAYS_INLINE vec_t alternate(words_t a, words_t b, int upper) {
    return _mm512_castsi512_ps(upper ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b));
}

/* Rows 2 i and 2 i + 1 of V, alternating. */
ALWAYS_INLINE void decode_pack_v(const decode_scratch_t *t, const in_place_t *v, int64_t i,
                                 uint16_t *to) {
    const char *a = element_at(v->data, 2 * i * v->stride, FLASH_DTYPE_BF16);
    const char *b = a + v->stride * 2;
    for (int64_t c = 0; c < t->columns; c++) {
        const words_t x = _mm512_loadu_si512(a + c * TILE_ROW_BYTES);
        const words_t y = _mm512_loadu_si512(b + c * TILE_ROW_BYTES);
        uint16_t *square = to + c * AMX_OPERANDS + i * AMX_SQUARE;
        _mm512_store_ps(square, alternate(x, y, 0));
        _mm512_store_ps(square + AMX_OPERANDS / 2, alternate(x, y, 1));
    }
}

/* Packs V to a buffer, asks for the next rows, and adds what is pending from the other buffer. */
ALWAYS_INLINE void decode_values(const decode_scratch_t *t, const in_place_t *v, int buffer,
                                 const decode_pending_t *pending, int R) {
    const int64_t n_tiles = pending->o ? 2 * t->columns : 0;
    tiles_see_stores();
    _tile_loadd(4, t->p[!buffer], TILE_ROW_BYTES);
    for (int64_t i = 0; i < 16; i++) {
        request_ahead(t, v, 2 * i, 2);
        decode_pack_v(t, v, i, t->v[buffer]);
        accumulate_tiles(t, pending, i * n_tiles / 16, (i + 1) * n_tiles / 16, R);
    }
    tiles_see_stores();
}

#endif
