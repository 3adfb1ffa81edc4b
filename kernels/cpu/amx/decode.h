/*
 * Few rows, bf16: K and V where the caller has them, products on the tile registers. Memory is the
 * limit then, so that tiles of mostly unused columns or rows cost nothing.
 *
 *   S^T = K Q^T   K's rows are the left operand as they lie, 16 keys by 32 columns a tile
 *   O = P V       V is the right operand, whose rows alternate in pairs of keys
 *
 * A head's rows are padded to a power of two, R. Scores are [32 keys][R], so that lane i of each
 * vector belongs to row i % R. Blocks, their order, and what each asks for are those of
 * tiled/in_place.h.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_H
#define FLASH_KERNELS_CPU_AMX_DECODE_H

#include "cpu/amx/pack.h"
#include "cpu/amx/softmax.h"
#include "cpu/amx/tiles.h"
#include "cpu/tiled/in_place.h"

#include <math.h>
#include <stdbool.h>

/* With fewer the vector kernel is as fast or faster. */
enum { DECODE_MIN_ROWS = 4, DECODE_MAX_ROWS = 16, DECODE_MIN_KEYS = 64 };

_Static_assert((int)IN_PLACE_KEYS == (int)AMX_SQUARE, "a block is two tiles of keys");

/* Parts of a task's scratch memory. */
typedef struct decode_scratch {
    uint16_t *q; /* [heads][columns][16][R][2], pairs of columns */
    float *o;    /* [heads][2 columns][R][16], not normalised; columns as alternate() leaves them */
    float *origin;  /* [heads][16], what a lane's scores are relative to, in units of log2 */
    float *sum;     /* [heads][16], of P */
    float *s;       /* [32][R] */
    uint16_t *p[2]; /* [R][32], of two blocks in turns */
    uint16_t *v[2]; /* [2 columns][16][16][2], pairs of keys, likewise */
    uint16_t *k_tail, *v_tail; /* [32][d], the last keys, where they do not fill a block */
    int64_t d;
    int64_t columns; /* squares along d */
    int64_t n_rows;
} decode_scratch_t;

ALWAYS_INLINE decode_scratch_t decode_divide_scratch(void *memory, int64_t d, int64_t n_rows,
                                                     int64_t n_heads, int R) {
    char *rest = memory;
    decode_scratch_t t = {.d = d, .columns = d / AMX_SQUARE, .n_rows = n_rows};
    t.q = take_bytes(&rest, n_heads * d * R * 2);
    t.o = take_bytes(&rest, n_heads * d * R * 4);
    t.origin = take_bytes(&rest, n_heads * 64);
    t.sum = take_bytes(&rest, n_heads * 64);
    t.s = take_bytes(&rest, AMX_SQUARE * R * 4);
    for (int i = 0; i < 2; i++) {
        t.p[i] = take_bytes(&rest, AMX_SQUARE * R * 2);
        t.v[i] = take_bytes(&rest, AMX_SQUARE * d * 2);
    }
    t.k_tail = take_bytes(&rest, AMX_SQUARE * d * 2);
    t.v_tail = take_bytes(&rest, AMX_SQUARE * d * 2);
    return t;
}

/* ---- Tiles ---- */

/* 0 and 1: scores of 16 keys each; 2: K; 3: Q^T; 4: P; 5: V; 6: O; 7 is free. */
ALWAYS_INLINE unsigned decode_configure(int R) {
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool narrow = i == 0 || i == 1 || i == 3, flat = i == 4 || i >= 6;
        config.row_bytes[i] = (uint16_t)(narrow ? R * 4 : TILE_ROW_BYTES);
        config.rows[i] = (uint8_t)(flat ? R : TILE_ROWS_MAX);
    }
    _tile_loadconfig(&config);
    return flush_subnormals();
}

/* ---- Q ---- */

ALWAYS_INLINE void decode_pack_q(const decode_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, uint16_t *q, int R) {
    for (int64_t c = 0; c < t->columns; c++) {
        vec_t pairs[16];
        cpu_row_t r = cpu_row(p, task, 0);
        for (int64_t row = 0; row < 16; row++) {
            pairs[row] = vec_zero();
            if (row >= t->n_rows)
                continue;
            const int64_t at = cpu_row_index(task, &p->q_stride, r) + c * AMX_SQUARE;
            pairs[row] = _mm512_loadu_ps(element_at(p->q, at, FLASH_DTYPE_BF16));
            r = cpu_next_row(p, task, r);
        }
        vec_transpose(pairs);
        for (int64_t i = 0; i < 16; i++)
            _mm512_mask_storeu_ps(q + (c * 16 + i) * R * 2, (__mmask16)((1u << R) - 1), pairs[i]);
    }
}

/* ---- S^T = K Q^T ---- */

/* Asks for rows first ... first + n - 1 of the next keys. */
ALWAYS_INLINE void request_ahead(const decode_scratch_t *t, const in_place_t *keys, int64_t first,
                                 int64_t n) {
    for (int64_t i = first; i < first + n; i++)
        prefetch_row(element_at(keys->ahead, i * keys->stride, FLASH_DTYPE_BF16), t->d * 2);
}

ALWAYS_INLINE void decode_score(const decode_scratch_t *t, const in_place_t *k, const uint16_t *q,
                                int R) {
    const int64_t stride = k->stride * 2, share = AMX_SQUARE / t->columns;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t c = 0; c < t->columns; c++) {
        const char *tile = k->data + c * TILE_ROW_BYTES;
        _tile_loadd(3, q + c * 32 * R, R * 4);
        _tile_loadd(2, tile, stride);
        _tile_dpbf16ps(0, 2, 3);
        request_ahead(t, k, c * share, share);
        _tile_loadd(2, tile + 16 * stride, stride);
        _tile_dpbf16ps(1, 2, 3);
    }
    request_ahead(t, k, t->columns * share, AMX_SQUARE - t->columns * share);
    _tile_stored(0, t->s, R * 4);
    _tile_stored(1, t->s + 16 * R, R * 4);
    tiles_see_stores();
}

/* ---- O += P V ---- */

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

/* ---- P ---- */

/* The larger or the sum of the lanes of each row, in all of them. */
ALWAYS_INLINE vec_t rotate_lanes(vec_t x, int by) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(by)), x);
}

ALWAYS_INLINE vec_t rows_max(vec_t x, int R) {
    for (int by = R; by < VEC_WIDTH; by *= 2)
        x = vec_max(x, rotate_lanes(x, by));
    return x;
}

ALWAYS_INLINE vec_t rows_sum(vec_t x, int R) {
    for (int by = R; by < VEC_WIDTH; by *= 2)
        x = vec_add(x, rotate_lanes(x, by));
    return x;
}

/* P of the block, and its sum for each lane. */
ALWAYS_INLINE vec_t decode_exponentiate(const decode_scratch_t *t, vec_t scale, vec_t origin, int R,
                                        vec_t e[32]) {
    vec_t sum = vec_zero();
    UNROLL for (int i = 0; i < 2 * R; i++) {
        e[i] = amx_exp2(_mm512_fmsub_ps(_mm512_load_ps(t->s + i * VEC_WIDTH), scale, origin));
        sum = vec_add(sum, e[i]);
    }
    return sum;
}

/* Rows have scores far beyond their origin, or none yet: what was summed so far counts less. NaN is
 * among them, and stays. */
NEVER_INLINE void decode_raise(const decode_scratch_t *t, int64_t head, vec_t block_sum,
                               vec_t scale, int R) {
    float *o = t->o + head * t->d * R;
    const vec_t old = _mm512_load_ps(t->origin + head * 16);
    const __mmask16 lanes = _mm512_cmp_ps_mask(block_sum, vec_set1(SUM_MAX), _CMP_NLE_UQ);
    const vec_t whole_rows = rows_max(_mm512_maskz_mov_ps(lanes, vec_set1(1)), R);
    const __mmask16 raised = _mm512_cmp_ps_mask(whole_rows, vec_zero(), _CMP_NEQ_OQ);
    vec_t new = vec_set1(-INFINITY);
    for (int i = 0; i < 2 * R; i++)
        new = vec_max(new, _mm512_load_ps(t->s + i * VEC_WIDTH));
    new = vec_mul(rows_max(new, R), scale);
    new = _mm512_mask_mov_ps(new, nothing_seen(new), vec_zero());
    new = _mm512_mask_mov_ps(old, raised, new);
    const vec_t factor =
        _mm512_mask_mov_ps(vec_exp2(vec_sub(old, new)), nothing_seen(old), vec_zero());
    float factors[16];
    _mm512_storeu_ps(factors, factor);
    _mm512_store_ps(t->origin + head * 16, new);
    _mm512_store_ps(t->sum + head * 16, vec_mul(_mm512_load_ps(t->sum + head * 16), factor));
    for (int64_t i = 0; i < 2 * t->columns * R; i++) {
        float *part = o + i * VEC_WIDTH;
        _mm512_store_ps(part, vec_mul(_mm512_load_ps(part), vec_set1(factors[i % R])));
    }
}

/* Words of even and of odd number of two vectors. */
ALWAYS_INLINE words_t every_other(words_t a, words_t b, int odd) {
    const words_t pairs = _mm512_set1_epi32(0x00020000);
    const words_t lanes = _mm512_setr_epi32(0x00000, 0x40004, 0x80008, 0xc000c, 0x100010, 0x140014,
                                            0x180018, 0x1c001c, 0x200020, 0x240024, 0x280028,
                                            0x2c002c, 0x300030, 0x340034, 0x380038, 0x3c003c);
    const words_t even = _mm512_add_epi16(pairs, lanes);
    return _mm512_permutex2var_epi16(a, _mm512_add_epi16(even, _mm512_set1_epi16((short)odd)), b);
}

/* From [keys][R] to [R][keys], in R vectors: splitting off every other row again and again leaves
 * row r where its bits in reverse order say. */
ALWAYS_INLINE void decode_store_p(const vec_t e[32], uint16_t *p, int R) {
    words_t x[16], y[16];
    UNROLL for (int i = 0; i < R; i++) x[i] = words_from_floats(e[2 * i], e[2 * i + 1]);
    for (int n = R; n > 1; n /= 2) {
        UNROLL for (int i = 0; i < R / 2; i++) {
            const int group = i / (n / 2) * n, at = i % (n / 2);
            y[group + at] = every_other(x[group + 2 * at], x[group + 2 * at + 1], 0);
            y[group + n / 2 + at] = every_other(x[group + 2 * at], x[group + 2 * at + 1], 1);
        }
        UNROLL for (int i = 0; i < R; i++) x[i] = y[i];
    }
    UNROLL for (int i = 0; i < R; i++) {
        int row = 0;
        for (int bit = 1; bit < R; bit *= 2)
            row = row * 2 + ((i & bit) != 0);
        _mm512_store_si512(p + row * AMX_SQUARE, x[i]);
    }
}

/* Scores to P, in a buffer. */
ALWAYS_INLINE void decode_softmax(const decode_scratch_t *t, int64_t head, vec_t scale, int buffer,
                                  decode_pending_t *pending, int R) {
    vec_t e[32];
    vec_t sum = decode_exponentiate(t, scale, _mm512_load_ps(t->origin + head * 16), R, e);
    if (_mm512_cmp_ps_mask(sum, vec_set1(SUM_MAX), _CMP_NLE_UQ) != 0) {
        accumulate_pending(t, pending, R); /* it may be the same head's */
        decode_raise(t, head, sum, scale, R);
        sum = decode_exponentiate(t, scale, _mm512_load_ps(t->origin + head * 16), R, e);
    }
    float *total = t->sum + head * 16;
    _mm512_store_ps(total, vec_add(_mm512_load_ps(total), sum));
    decode_store_p(e, t->p[buffer], R);
}

/* ---- Blocks ---- */

/* The keys of a block that is not full, and zeros. */
static inline void copy_tail(const decode_scratch_t *t, in_place_t *keys, int64_t n,
                             uint16_t *tail) {
    for (int64_t i = 0; i < n; i++)
        memcpy(tail + i * t->d, element_at(keys->data, i * keys->stride, FLASH_DTYPE_BF16),
               (size_t)t->d * 2);
    memset(tail + n * t->d, 0, (size_t)((AMX_SQUARE - n) * t->d) * 2);
    *keys = (in_place_t){(const char *)tail, (const char *)tail, t->d};
}

ALWAYS_INLINE void decode_block(const decode_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task, int64_t head, flash_range_t block,
                                int32_t end, decode_pending_t *pending, int R) {
    const float scale = (p->softcap != 0 ? 1 : p->softmax_scale) * LOG2_E;
    const int64_t n = block.end - block.begin;
    const cpu_ahead_t after = after_block(task, block, end);
    in_place_t k = rows_in_place(task, FLASH_DTYPE_BF16, p->k, &p->k_stride, block, after);
    in_place_t v = rows_in_place(task, FLASH_DTYPE_BF16, p->v, &p->v_stride, block, after);
    if (n < AMX_SQUARE) {
        copy_tail(t, &k, n, t->k_tail);
        copy_tail(t, &v, n, t->v_tail);
    }
    decode_score(t, &k, t->q + head * t->d * R, R);
    if (p->softcap != 0)
        cap(t->s, AMX_SQUARE * R, p->softmax_scale, p->softcap);
    for (int64_t i = n * R; i < AMX_SQUARE * R; i++)
        t->s[i] = -INFINITY;
    const int buffer = !pending->buffer;
    decode_softmax(t, head, vec_set1(scale), buffer, pending, R);
    decode_values(t, &v, buffer, pending, R);
    *pending = (decode_pending_t){t->o + head * t->d * R, buffer};
}

/* ---- O ---- */

/* The rows of a head, normalised; zeros where a sum is zero. */
ALWAYS_INLINE void decode_store(const decode_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task, int64_t head, int R) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const int32_t dtype = task->o_partial ? FLASH_DTYPE_FP32 : FLASH_DTYPE_BF16;
    void *o = task->o_partial ? (void *)task->o_partial : p->o;
    float sums[16];
    _mm512_storeu_ps(sums, rows_sum(_mm512_load_ps(t->sum + head * 16), R));
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < t->n_rows; row++, r = cpu_next_row(p, task, r)) {
        const int64_t at = task->o_partial ? row * t->d : cpu_row_index(task, &p->o_stride, r);
        const __mmask16 seen = sums[row] != 0 ? 0xffff : 0;
        const vec_t inverse = vec_set1(1 / sums[row]);
        for (int64_t c = 0; c < t->columns; c++) {
            const float *from = t->o + head * t->d * R + (2 * c * R + row) * VEC_WIDTH;
            const vec_t a = _mm512_maskz_mul_ps(seen, _mm512_load_ps(from), inverse);
            const vec_t b =
                _mm512_maskz_mul_ps(seen, _mm512_load_ps(from + R * VEC_WIDTH), inverse);
            void *to = element_at_mutable(o, at + c * AMX_SQUARE, dtype);
            vec_store(dtype, to, _mm512_permutex2var_ps(a, low, b));
            vec_store(dtype, element_at_mutable(to, VEC_WIDTH, dtype),
                      _mm512_permutex2var_ps(a, high, b));
        }
        if (cpu_wants_lse(p, task))
            cpu_store_lse(p, task, row, r,
                          sums[row] != 0 ? t->origin[head * 16 + row] * LN_2 + logf(sums[row])
                                         : -INFINITY);
    }
}

/* ---- Tasks ---- */

ALWAYS_INLINE void decode_padded(const flash_params_t *p, const cpu_task_t *task, int64_t d,
                                 flash_range_t keys, void *scratch, int R) {
    const int64_t n_rows = task->row_end - task->row_begin;
    const decode_scratch_t t = decode_divide_scratch(scratch, d, n_rows, task->n_heads, R);
    memset(t.o, 0, (size_t)(task->n_heads * d * R) * sizeof *t.o);
    memset(t.sum, 0, (size_t)task->n_heads * 64);
    for (int64_t i = 0; i < task->n_heads * 16; i++)
        t.origin[i] = -INFINITY;
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t one = task_of_head(task, head, d);
        decode_pack_q(&t, p, &one, t.q + head * d * R, R);
    }
    const unsigned control = decode_configure(R);
    decode_pending_t pending = {NULL, 0};
    for (flash_range_t rest = keys; rest.begin < rest.end;) {
        const flash_range_t block = first_block(rest, AMX_SQUARE);
        for (int32_t head = 0; head < task->n_heads; head++) {
            const cpu_task_t one = task_of_head(task, head, d);
            decode_block(&t, p, &one, head, block, keys.end, &pending, R);
        }
        rest.begin = block.end;
    }
    accumulate_pending(&t, &pending, R);
    tiles_release(control);
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t one = task_of_head(task, head, d);
        decode_store(&t, p, &one, head, R);
    }
}

/* Whether amx_decode() can, and pays: for rows that see the same keys, which nobody has packed. */
static inline bool decodes_on_tiles(const flash_config_t *config, const flash_params_t *p,
                                    const cpu_task_t *task) {
    const int64_t n_rows = task->row_end - task->row_begin;
    if (config->dtype != FLASH_DTYPE_BF16 || p->d_head % AMX_SQUARE != 0 ||
        n_rows < DECODE_MIN_ROWS || n_rows > DECODE_MAX_ROWS || task->packed != NULL)
        return false;
    cpu_row_t r = cpu_row(p, task, 0);
    const flash_range_t keys = cpu_row_keys(p, task, r);
    for (int64_t row = 0; row < n_rows; row++, r = cpu_next_row(p, task, r)) {
        const flash_range_t own = cpu_row_keys(p, task, r);
        if (own.begin != keys.begin || own.end != keys.end)
            return false;
    }
    return keys.end - keys.begin >= DECODE_MIN_KEYS;
}

ALWAYS_INLINE void amx_decode(const flash_params_t *p, const cpu_task_t *task, int64_t d,
                              void *scratch) {
    const int64_t n_rows = task->row_end - task->row_begin;
    const flash_range_t keys = cpu_row_keys(p, task, cpu_row(p, task, 0));
    if (n_rows <= 4)
        decode_padded(p, task, d, keys, scratch, 4);
    else if (n_rows <= 8)
        decode_padded(p, task, d, keys, scratch, 8);
    else
        decode_padded(p, task, d, keys, scratch, 16);
}

#endif
