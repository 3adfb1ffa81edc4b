/*
 * This file turns scores of a strip of 32 rows against a block of keys into P: S^T, [keys] squares
 * in fp32, becomes P^T = exp2(S^T * scale - reference) in bf16. It goes by two keys at a time, so
 * that the products of other strips can run in between (attend.h).
 *
 * The reference maximum is the row's maximum at an earlier time. It moves only when P sums up to
 * more than SUM_MAX: rarely, so that O is hardly ever rescaled, and P stays far from overflow.
 */
#ifndef FLASH_KERNELS_CPU_AMX_SOFTMAX_H
#define FLASH_KERNELS_CPU_AMX_SOFTMAX_H

#include "cpu/amx/pack.h"
#include "cpu/amx/scratch.h"
#include "cpu/tiled/softmax.h"
#include "cpu/vector.h"

#include <math.h>
#include <stdbool.h>

static const float SUM_MAX = 4096; /* of a row's P over an item, and the largest B_c */

/* Says whether P of a row with this sum can be trusted. Scores beyond 1e9 are too coarse in units
 * of log2: P of the row's own maximum is far from 1 then, if not 0, infinity or NaN. */
static inline bool is_sound(float sum) {
    return sum >= 0x1p-40f && sum <= 0x1p60f;
}

/* A strip has a lane for each row. */
typedef struct lanes {
    vec_t half[2];
} lanes_t;

ALWAYS_INLINE lanes_t lanes_load(const float *rows, int64_t strip) {
    const float *from = rows + strip * AMX_SQUARE;
    const lanes_t x = {{_mm512_load_ps(from), _mm512_load_ps(from + VEC_WIDTH)}};
    return x;
}

ALWAYS_INLINE void lanes_store(float *rows, int64_t strip, lanes_t x) {
    float *to = rows + strip * AMX_SQUARE;
    _mm512_store_ps(to, x.half[0]);
    _mm512_store_ps(to + VEC_WIDTH, x.half[1]);
}

/* An item is a strip of rows against squares first ... last - 1 of a block. */
typedef struct amx_item {
    amx_block_t block;
    int64_t strip;
    int32_t key; /* the block's first */
    int32_t first;
    int32_t last;
    int32_t n_chunks;         /* of scores */
    const cpu_holes_t *holes; /* the block's keys in holes; NULL: none */
    int buffer;               /* of P */
    bool starts;              /* no item of the strip came before */
} amx_item_t;

/* These are scores of squares first ... last - 1 of an item's block. */
typedef struct amx_scores {
    float *s;
    int32_t first;
    int32_t last;
} amx_scores_t;

ALWAYS_INLINE float *scores_square(const amx_scores_t *scores, int64_t square) {
    return scores->s + (square - scores->first) * AMX_OPERANDS;
}

ALWAYS_INLINE uint16_t *item_p(const amx_scratch_t *t, const amx_item_t *item, int64_t square) {
    return t->p[item->buffer] + square * t->terms.keys * AMX_OPERANDS;
}

/* ---- Before the exponentials ---- */

/* Hides scores that a row does not see. All rows see `common`, which needs no mask. */
NEVER_INLINE void hide_unseen(const amx_scratch_t *t, const amx_item_t *item,
                              const amx_scores_t *scores, flash_range_t common) {
    for (int64_t half = 0; half < 2; half++) {
        const int64_t row = item->strip * AMX_SQUARE + half * VEC_WIDTH;
        const __m512i begin = _mm512_load_si512(t->begin + row);
        const __m512i end = _mm512_load_si512(t->end + row);
        for (int32_t j = scores->first; j < scores->last; j++) {
            const int32_t first = item->key + j * AMX_SQUARE;
            if (common.begin <= first && first + AMX_SQUARE <= common.end)
                continue;
            for (int32_t i = 0; i < AMX_SQUARE; i++) {
                const __m512i key = _mm512_set1_epi32(first + i);
                const __mmask16 seen =
                    _mm512_cmple_epi32_mask(begin, key) & _mm512_cmplt_epi32_mask(key, end);
                float *s = result_row(scores_square(scores, j), i) + half * VEC_WIDTH;
                _mm512_mask_store_ps(s, (__mmask16)~seen, vec_set1(-INFINITY));
            }
        }
    }
}

/* Hides the keys of an item's squares that lie in holes. */
NEVER_INLINE void hide_holes_of_squares(const cpu_holes_t *holes, const amx_scores_t *scores) {
    const vec_t hidden = vec_set1(-INFINITY);
    for (int32_t j = scores->first; j < scores->last; j++)
        for (uint32_t left = holes->word[j]; left != 0; left &= left - 1) {
            float *s = result_row(scores_square(scores, j), __builtin_ctz(left));
            _mm512_store_ps(s, hidden);
            _mm512_store_ps(s + VEC_WIDTH, hidden);
        }
}

/* Returns the largest score of each row of a half, scaled. */
ALWAYS_INLINE vec_t row_maxima(const amx_scores_t *scores, int64_t half, vec_t scale) {
    vec_t largest = vec_set1(-INFINITY);
    const int64_t n = (int64_t)(scores->last - scores->first) * AMX_SQUARE;
    for (int64_t key = 0; key < n; key++)
        largest = vec_max(largest, _mm512_load_ps(result_row(scores->s, key) + half * VEC_WIDTH));
    return vec_mul(largest, scale);
}

ALWAYS_INLINE __mmask16 nothing_seen(vec_t maximum) {
    return _mm512_cmp_ps_mask(maximum, vec_set1(-INFINITY), _CMP_EQ_OQ);
}

ALWAYS_INLINE void set_maximum(const amx_scratch_t *t, int64_t strip, lanes_t maximum) {
    lanes_t reference;
    for (int half = 0; half < 2; half++) { /* -inf - -inf is NaN */
        const vec_t x = maximum.half[half];
        reference.half[half] = _mm512_mask_mov_ps(x, nothing_seen(x), vec_zero());
    }
    lanes_store(t->maximum, strip, maximum);
    lanes_store(t->reference, strip, reference);
}

ALWAYS_INLINE bool all_rows_started(const amx_scratch_t *t, int64_t strip) {
    const lanes_t maximum = lanes_load(t->maximum, strip);
    return (nothing_seen(maximum.half[0]) | nothing_seen(maximum.half[1])) == 0;
}

/* Sets the maxima of rows that saw no key before. */
NEVER_INLINE void start_strip(const amx_scratch_t *t, int64_t strip, const amx_scores_t *scores,
                              float scale) {
    lanes_t maximum = lanes_load(t->maximum, strip);
    for (int half = 0; half < 2; half++)
        maximum.half[half] =
            _mm512_mask_mov_ps(maximum.half[half], nothing_seen(maximum.half[half]),
                               row_maxima(scores, half, vec_set1(scale)));
    set_maximum(t, strip, maximum);
}

/* ---- The exponentials ---- */

/* Computes 2^x = 2^floor(x) * 2^r by a minimax polynomial of 2^r on [0, 1) with p(0) = 1, relative
 * error 3e-6: P is rounded to one or two terms of bf16, and the sum must serve the LSE. */
ALWAYS_INLINE vec_t amx_exp2(vec_t x) {
    const vec_t r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec_t p = vec_set1(0x1.b7f734p-7f);
    p = vec_fma(p, r, vec_set1(0x1.abf868p-5f));
    p = vec_fma(p, r, vec_set1(0x1.ee2452p-3f));
    p = vec_fma(p, r, vec_set1(0x1.62d6c6p-1f));
    p = vec_fma(p, r, vec_set1(1));
    return _mm512_scalef_ps(p, x);
}

/* These are the exponentials of an item, and which of a chunk are done. */
typedef struct exponentials {
    vec_t scale;
    lanes_t reference;
    lanes_t sum;    /* of the item */
    const float *s; /* of the chunk */
    uint16_t *p;
    int64_t done; /* pairs of keys of the chunk */
    int64_t n;
} exponentials_t;

/* Rounds to bf16 in the upper halves, ties away from zero. The lower halves are undefined. */
ALWAYS_INLINE __m512i round_up_halves(vec_t x) {
    return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}

/* Interleaves the upper halves of both. */
ALWAYS_INLINE words_t pair_halves(__m512i a, __m512i b) {
    return _mm512_mask_mov_epi16(_mm512_bsrli_epi128(a, 2), 0xaaaaaaaa, b);
}

ALWAYS_INLINE void store_pair(vec_t a, vec_t b, int32_t terms, uint16_t *p) {
    const __m512i high_a = round_up_halves(a), high_b = round_up_halves(b);
    _mm512_store_si512(p, pair_halves(high_a, high_b));
    if (terms == 2) {
        const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
        const vec_t low_a = vec_sub(a, _mm512_castsi512_ps(_mm512_and_si512(high_a, upper)));
        const vec_t low_b = vec_sub(b, _mm512_castsi512_ps(_mm512_and_si512(high_b, upper)));
        _mm512_store_si512(p + AMX_OPERANDS,
                           pair_halves(round_up_halves(low_a), round_up_halves(low_b)));
    }
}

/* Computes P of the next two keys of the chunk, of 32 scores each. */
ALWAYS_INLINE void exponentiate_next(exponentials_t *e, int32_t terms) {
    const int64_t in_square = e->done % (AMX_SQUARE / 2), square = e->done / (AMX_SQUARE / 2);
    const float *s = e->s + e->done * 2 * AMX_SQUARE;
    uint16_t *p = e->p + square * terms * AMX_OPERANDS + in_square * AMX_SQUARE;
    UNROLL for (int half = 0; half < 2; half++, s += VEC_WIDTH, p += AMX_OPERANDS / 2) {
        const vec_t reference = e->reference.half[half];
        const vec_t a = amx_exp2(_mm512_fmsub_ps(_mm512_load_ps(s), e->scale, reference));
        const vec_t b =
            amx_exp2(_mm512_fmsub_ps(_mm512_load_ps(s + AMX_SQUARE), e->scale, reference));
        e->sum.half[half] = vec_add(e->sum.half[half], vec_add(a, b));
        store_pair(a, b, terms, p);
    }
    e->done++;
}

ALWAYS_INLINE exponentials_t start_exponentials(const amx_scratch_t *t, const amx_item_t *item,
                                                float scale) {
    const exponentials_t e = {.scale = vec_set1(scale),
                              .reference = lanes_load(t->reference, item->strip),
                              .sum = {{vec_zero(), vec_zero()}}};
    return e;
}

ALWAYS_INLINE void set_chunk(const amx_scratch_t *t, const amx_item_t *item,
                             const amx_scores_t *chunk, exponentials_t *e) {
    e->s = chunk->s;
    e->p = item_p(t, item, chunk->first);
    e->done = 0;
    e->n = (int64_t)(chunk->last - chunk->first) * AMX_SQUARE / 2;
}

/* ---- After the exponentials ---- */

/* Returns the rows whose P is too large to stay: a score is above the reference maximum, since B_c
 * is at most SUM_MAX. */
ALWAYS_INLINE __mmask16 exceeds(vec_t sum) {
    return _mm512_cmp_ps_mask(sum, vec_set1(SUM_MAX), _CMP_GT_OQ);
}

ALWAYS_INLINE bool some_row_exceeds(lanes_t sum) {
    return (exceeds(sum.half[0]) | exceeds(sum.half[1])) != 0;
}

/* Multiplies O of the strip by a factor for each row. */
static inline void scale_o(const amx_scratch_t *t, int64_t strip, lanes_t factor) {
    float *o = t->o + strip * t->v_columns * AMX_OPERANDS;
    for (int64_t i = 0; i < t->v_columns * AMX_OPERANDS; i += AMX_SQUARE)
        for (int half = 0; half < 2; half++) {
            float *at = o + i + half * VEC_WIDTH;
            _mm512_store_ps(at, vec_mul(_mm512_load_ps(at), factor.half[half]));
        }
}

/* Raises the maximum of rows with too large scores, rescales what they summed so far, and computes
 * P of the item again. The strip's first item finds no O yet. Returns the item's sums. */
static inline lanes_t raise_rows(const amx_scratch_t *t, const amx_item_t *item,
                                 const amx_scores_t *scores, lanes_t item_sum, float scale) {
    lanes_t maximum = lanes_load(t->maximum, item->strip), sum = lanes_load(t->sum, item->strip);
    lanes_t factor;
    for (int half = 0; half < 2; half++) {
        const __mmask16 raised = exceeds(item_sum.half[half]);
        const vec_t old = maximum.half[half];
        const vec_t new = row_maxima(scores, half, vec_set1(scale));
        factor.half[half] = _mm512_mask_mov_ps(vec_set1(1), raised, vec_exp2(vec_sub(old, new)));
        maximum.half[half] = _mm512_mask_mov_ps(old, raised, new);
        sum.half[half] = vec_mul(sum.half[half], factor.half[half]);
    }
    set_maximum(t, item->strip, maximum);
    lanes_store(t->sum, item->strip, sum);
    if (!item->starts)
        scale_o(t, item->strip, factor);
    exponentials_t e = start_exponentials(t, item, scale);
    set_chunk(t, item, scores, &e);
    while (e.done < e.n)
        exponentiate_next(&e, t->terms.keys);
    return e.sum;
}

ALWAYS_INLINE void add_item_sum(const amx_scratch_t *t, int64_t strip, lanes_t item_sum) {
    lanes_t sum = lanes_load(t->sum, strip);
    for (int half = 0; half < 2; half++)
        sum.half[half] = vec_add(sum.half[half], item_sum.half[half]);
    lanes_store(t->sum, strip, sum);
}

#endif
