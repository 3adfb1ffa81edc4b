/*
 * Scores of a strip of 32 rows against a block of keys, to P: S = [keys] squares in fp32 becomes
 * P = exp2(S * scale - origin) in bf16, a few rows at a time, so that the products of other strips
 * can run in between (attend.h).
 *
 * The origin is the row's maximum at an earlier time. It moves only when P sums up to more than
 * SUM_MAX: rarely, so that O is hardly ever rescaled, and P stays far from overflow.
 */
#ifndef FLASH_KERNELS_CPU_AMX_SOFTMAX_H
#define FLASH_KERNELS_CPU_AMX_SOFTMAX_H

#include "cpu/amx/pack.h"
#include "cpu/amx/scratch.h"
#include "cpu/tiled/softmax.h"
#include "cpu/vector.h"

#include <math.h>

static const float SUM_MAX = 256; /* of a lane of a row's sum over an item */

/* A strip of rows against squares first ... last - 1 of a block. */
typedef struct amx_item {
    amx_block_t block;
    int64_t strip;
    int32_t key; /* the block's first */
    int32_t first;
    int32_t last;
    int buffer;  /* of P */
    bool starts; /* no item of the strip came before */
} amx_item_t;

/* Scores of squares first ... last - 1 of an item's block. */
typedef struct amx_scores {
    float *s;
    int32_t first;
    int32_t last;
} amx_scores_t;

ALWAYS_INLINE float *scores_square(const amx_scores_t *scores, int64_t square) {
    return scores->s + (square - scores->first) * AMX_OPERANDS;
}

ALWAYS_INLINE uint16_t *item_p(const amx_scratch_t *t, const amx_item_t *item, int64_t square) {
    return t->p[item->buffer] + square * t->terms * AMX_OPERANDS;
}

/* ---- Before the exponentials ---- */

/* Hides what a row does not see of the 16 scores that begin with `key`. */
ALWAYS_INLINE void hide_in_row(float *s, flash_range_t keys, int32_t key) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i begin = _mm512_set1_epi32(keys.begin - key);
    const __m512i end = _mm512_set1_epi32(keys.end - key);
    const __mmask16 seen =
        _mm512_cmpge_epi32_mask(lanes, begin) & _mm512_cmplt_epi32_mask(lanes, end);
    _mm512_store_ps(s, _mm512_mask_mov_ps(vec_set1(-INFINITY), seen, _mm512_load_ps(s)));
}

/* Every row of the strip sees `common`; squares within it need no mask. */
NEVER_INLINE void hide_unseen(const amx_scratch_t *t, const amx_item_t *item,
                              const amx_scores_t *scores, flash_range_t common) {
    for (int32_t j = scores->first; j < scores->last; j++) {
        const int32_t key = item->key + j * AMX_SQUARE;
        if (common.begin <= key && key + AMX_SQUARE <= common.end)
            continue;
        for (int64_t r = 0; r < AMX_SQUARE; r++) {
            const int64_t row = item->strip * AMX_SQUARE + r;
            const flash_range_t keys = {t->begin[row], t->end[row]};
            float *s = result_row(scores_square(scores, j), r);
            hide_in_row(s, keys, key);
            hide_in_row(s + 16, keys, key + 16);
        }
    }
}

/* s = softcap * tanh(s * softmax_scale / softcap). */
NEVER_INLINE void cap(const amx_scores_t *scores, float softmax_scale, float softcap) {
    const vec_t inner = vec_set1(softmax_scale / softcap), outer = vec_set1(softcap);
    float *s = scores->s;
    const int64_t n = (int64_t)(scores->last - scores->first) * AMX_OPERANDS;
    for (int64_t i = 0; i < n; i += VEC_WIDTH)
        _mm512_store_ps(s + i, vec_mul(outer, vec_tanh(vec_mul(inner, _mm512_load_ps(s + i)))));
}

/* The largest score of row r of the strip, scaled. */
ALWAYS_INLINE float row_maximum(const amx_scores_t *scores, int64_t r, float scale) {
    vec_t largest = vec_set1(-INFINITY);
    for (int32_t j = scores->first; j < scores->last; j++) {
        const float *s = result_row(scores_square(scores, j), r);
        largest = vec_max(largest, vec_max(_mm512_load_ps(s), _mm512_load_ps(s + 16)));
    }
    return vec_reduce_max(largest) * scale;
}

ALWAYS_INLINE void set_maximum(const amx_scratch_t *t, int64_t row, float maximum) {
    t->maximum[row] = maximum;
    t->origin[row] = maximum == -INFINITY ? 0 : maximum; /* -inf - -inf is NaN */
}

ALWAYS_INLINE bool all_rows_started(const amx_scratch_t *t, int64_t strip) {
    const float *maximum = t->maximum + strip * AMX_SQUARE;
    const vec_t none = vec_set1(-INFINITY);
    return (_mm512_cmp_ps_mask(_mm512_load_ps(maximum), none, _CMP_EQ_OQ) |
            _mm512_cmp_ps_mask(_mm512_load_ps(maximum + 16), none, _CMP_EQ_OQ)) == 0;
}

/* The first scores that a row sees give it its maximum. */
NEVER_INLINE void start_strip(const amx_scratch_t *t, int64_t strip, const amx_scores_t *scores,
                              float scale) {
    for (int64_t r = 0; r < AMX_SQUARE; r++)
        if (t->maximum[strip * AMX_SQUARE + r] == -INFINITY)
            set_maximum(t, strip * AMX_SQUARE + r, row_maximum(scores, r, scale));
}

/* ---- The exponentials ---- */

/* 2^x = 2^floor(x) * 2^r; minimax polynomial of 2^r on [0, 1) with p(0) = 1, relative error 3e-6:
 * P is rounded to bf16 or twice that, and the sum must serve the LSE. */
ALWAYS_INLINE vec_t amx_exp2(vec_t x) {
    const vec_t r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec_t p = vec_set1(0x1.b7f734p-7f);
    p = vec_fma(p, r, vec_set1(0x1.abf868p-5f));
    p = vec_fma(p, r, vec_set1(0x1.ee2452p-3f));
    p = vec_fma(p, r, vec_set1(0x1.62d6c6p-1f));
    p = vec_fma(p, r, vec_set1(1));
    return _mm512_scalef_ps(p, x);
}

/* The exponentials of an item, and how far those of a chunk are. */
typedef struct exponentials {
    const float *origin; /* of the strip */
    float *sum;          /* [32][16], of the item */
    vec_t scale;
    float *s; /* of the chunk */
    uint16_t *p;
    int64_t done; /* elements of the chunk, row after row and square after square */
    int64_t n;
} exponentials_t;

ALWAYS_INLINE void exponentiate_row(exponentials_t *e, int32_t terms, const float *s, uint16_t *p,
                                    float origin, float *sum) {
    const vec_t origins = vec_set1(origin);
    const vec_t x0 = _mm512_fmsub_ps(_mm512_load_ps(s), e->scale, origins);
    const vec_t x1 = _mm512_fmsub_ps(_mm512_load_ps(s + 16), e->scale, origins);
    const vec_t p0 = amx_exp2(x0), p1 = amx_exp2(x1);
    _mm512_store_ps(sum, vec_add(_mm512_load_ps(sum), vec_add(p0, p1)));
    words_t split[2] = {_mm512_setzero_si512()};
    split_floats(p0, p1, terms, split);
    for (int i = 0; i < terms; i++)
        _mm512_store_si512(p + i * AMX_OPERANDS, split[i]);
}

/* The next row of the chunk. */
ALWAYS_INLINE void exponentiate_next(exponentials_t *e, int32_t terms) {
    const int64_t at = e->done, in_square = at % AMX_OPERANDS;
    const int64_t p = terms == 1 ? at : at + (at - in_square);
    exponentiate_row(e, terms, e->s + at, e->p + p, e->origin[in_square / AMX_SQUARE],
                     e->sum + in_square / 2);
    e->done = at + AMX_SQUARE;
}

ALWAYS_INLINE exponentials_t start_exponentials(const amx_scratch_t *t, const amx_item_t *item,
                                                float scale) {
    const exponentials_t e = {.origin = t->origin + item->strip * AMX_SQUARE,
                              .sum = t->item_sum,
                              .scale = vec_set1(scale)};
    return e;
}

ALWAYS_INLINE void set_chunk(const amx_scratch_t *t, const amx_item_t *item,
                             const amx_scores_t *chunk, exponentials_t *e) {
    e->s = chunk->s;
    e->p = item_p(t, item, chunk->first);
    e->done = 0;
    e->n = (int64_t)(chunk->last - chunk->first) * AMX_OPERANDS;
}

/* ---- After the exponentials ---- */

/* Whether P of row r is too large to stay as it is. No P is above its lane's sum, and a lane adds
 * up at most SUM_MAX of them, so that one of them is above 1. */
ALWAYS_INLINE bool row_exceeds(const amx_scratch_t *t, int64_t r) {
    return _mm512_cmp_ps_mask(_mm512_load_ps(t->item_sum + r * 16), vec_set1(SUM_MAX),
                              _CMP_GT_OQ) != 0;
}

ALWAYS_INLINE bool some_row_exceeds(const amx_scratch_t *t) {
    vec_t largest[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    UNROLL for (int i = 0; i < 8; i++) {
        UNROLL for (int j = 0; j < 4; j++) /* a NaN does not stay */
            largest[j] = vec_max(_mm512_load_ps(t->item_sum + (i * 4 + j) * 16), largest[j]);
    }
    const vec_t all = vec_max(vec_max(largest[0], largest[1]), vec_max(largest[2], largest[3]));
    return _mm512_cmp_ps_mask(all, vec_set1(SUM_MAX), _CMP_GT_OQ) != 0;
}

/* Row r of the strip has a score beyond its maximum: what was summed so far counts less, and its P
 * of this item is computed again. The strip's first item finds no O yet. */
static inline void raise_row(const amx_scratch_t *t, const amx_item_t *item,
                             const amx_scores_t *scores, int64_t r, float maximum, float scale) {
    const int64_t row = item->strip * AMX_SQUARE + r;
    const vec_t factor = vec_set1(exp2f(t->maximum[row] - maximum));
    float *sum = t->sum + row * 16, *item_sum = t->item_sum + r * 16;
    set_maximum(t, row, maximum);
    _mm512_store_ps(sum, vec_mul(factor, _mm512_load_ps(sum)));
    for (int64_t c = item->starts ? t->columns : 0; c < t->columns; c++) {
        float *o = result_row(t->o + (item->strip * t->columns + c) * AMX_OPERANDS, r);
        _mm512_store_ps(o, vec_mul(factor, _mm512_load_ps(o)));
        _mm512_store_ps(o + 16, vec_mul(factor, _mm512_load_ps(o + 16)));
    }
    exponentials_t e = {.scale = vec_set1(scale)};
    _mm512_store_ps(item_sum, vec_zero());
    for (int32_t j = scores->first; j < scores->last; j++)
        exponentiate_row(&e, t->terms, result_row(scores_square(scores, j), r),
                         item_p(t, item, j) + r * AMX_SQUARE, t->origin[row], item_sum);
}

static inline void raise_rows(const amx_scratch_t *t, const amx_item_t *item,
                              const amx_scores_t *scores, float scale) {
    for (int64_t r = 0; r < AMX_SQUARE; r++)
        if (row_exceeds(t, r))
            raise_row(t, item, scores, r, row_maximum(scores, r, scale), scale);
}

/* The item's sums join the strip's, and are zeros for the next item. */
ALWAYS_INLINE void add_item_sums(const amx_scratch_t *t, int64_t strip) {
    for (int64_t r = 0; r < AMX_SQUARE; r++) {
        float *sum = t->sum + (strip * AMX_SQUARE + r) * 16;
        _mm512_store_ps(sum, vec_add(_mm512_load_ps(sum), _mm512_load_ps(t->item_sum + r * 16)));
        _mm512_store_ps(t->item_sum + r * 16, vec_zero());
    }
}

#endif
