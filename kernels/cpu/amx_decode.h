/*
 * Few rows, bf16: K and V where the caller has them, products on the tile registers. Memory is the
 * limit then, so that tiles of mostly unused columns or rows cost nothing.
 *
 *   S^T = K Q^T   K's rows are the left operand as they lie, 16 keys by 32 columns a tile
 *   O = P V       V's rows are the right operand as they lie, likewise
 *
 * A head's rows are padded to R: 4, 8 or 16. Scores are [32 keys][R], keys i and i + 16 side by
 * side, so that lane i of each vector belongs to row i % R. A head has a block of keys at
 * a time, which asks for the next one as tiled/in_place.h says.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_H
#define FLASH_KERNELS_CPU_AMX_DECODE_H

#include "cpu/amx_decode/scores.h"
#include "cpu/amx_decode/softmax.h"
#include "cpu/amx_decode/values.h"

#include <math.h>
#include <string.h>

/* With fewer the vector kernel is as fast or faster. */
enum { DECODE_MIN_ROWS = 2, DECODE_MAX_ROWS = 16, DECODE_MIN_KEYS = 64 };

_Static_assert((int)IN_PLACE_KEYS == (int)AMX_SQUARE, "a block is two tiles of keys");

/* ---- Blocks ---- */

/* The keys of a block that is not full, and zeros. */
static inline void copy_tail(const decode_scratch_t *t, in_place_t *keys, int64_t n,
                             uint16_t *tail) {
    for (int64_t i = 0; i < n; i++)
        memcpy(tail + i * t->d, element_at(keys->data, i * keys->stride, FLASH_DTYPE_BF16),
               (size_t)t->d * 2);
    memset(tail + n * t->d, 0, (size_t)((AMX_SQUARE - n) * t->d) * 2);
    *keys = (in_place_t){
        .data = (const char *)tail, .ahead = (const char *)tail, .stride = t->d, .adjoin = true};
}

/* A block of n keys of a head. */
ALWAYS_INLINE void decode_block(const decode_scratch_t *t, const flash_params_t *p, int64_t head,
                                int64_t n, in_place_t k, in_place_t v, decode_pending_t *pending,
                                int R) {
    const float scale = scores_to_log2(p);
    const decode_next_t next = {k, v};
    if (n < AMX_SQUARE) {
        decode_values(t, pending, NULL, R); /* its V may be in the tail, too */
        copy_tail(t, &k, n, t->k_tail);
        copy_tail(t, &v, n, t->v_tail);
    }
    decode_score(t, &k, &next.k, t->q + head * t->d * R, R);
    decode_values(t, pending, &next.v, R);
    if (p->softcap != 0)
        cap_scores(t->s, AMX_SQUARE * R, p->softmax_scale, p->softcap);
    hide_keys(t, n, R);
    decode_softmax(t, &next, head, vec_set1(scale), R);
    *pending = (decode_pending_t){t->o + head * t->d * R, v};
}

/* A block of keys of all heads before the next one, as attend_few_rows() does. */
ALWAYS_INLINE void decode_blocks(const decode_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, flash_range_t keys, int R) {
    const unsigned control = decode_configure(R);
    decode_pending_t pending = {.o = NULL};
    while (keys.begin < keys.end) {
        const flash_range_t block = first_block(keys, AMX_SQUARE);
        in_place_t k = rows_in_place(task, task->n_heads, FLASH_DTYPE_BF16, t->d, p->k,
                                     &p->k_stride, block, keys.end);
        in_place_t v = rows_in_place(task, task->n_heads, FLASH_DTYPE_BF16, t->d, p->v,
                                     &p->v_stride, block, keys.end);
        for (int32_t head = 0; head < task->n_heads; head++) {
            decode_block(t, p, head, block.end - block.begin, k, v, &pending, R);
            to_next_head(&k);
            to_next_head(&v);
        }
        keys.begin = block.end;
    }
    decode_values(t, &pending, NULL, R);
    tiles_release(control);
}

/* ---- O ---- */

/* The rows of a head, normalised; zeros where a sum is zero. */
ALWAYS_INLINE void decode_store(const decode_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task, int64_t head, int R) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
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
            cpu_store_lse(p, task, row, r, row_lse(t->origin[head * 16 + row], sums[row]));
    }
}

/* ---- Tasks ---- */

ALWAYS_INLINE void decode_start(const decode_scratch_t *t, int64_t n_heads, int R) {
    memset(t->o, 0, (size_t)(n_heads * t->d * R) * sizeof *t->o);
    memset(t->sum, 0, (size_t)n_heads * 64);
    for (int64_t i = 0; i < n_heads * 16; i++)
        t->origin[i] = -INFINITY;
}

ALWAYS_INLINE void decode_padded(const flash_params_t *p, const cpu_task_t *task, int64_t d,
                                 flash_range_t keys, void *scratch, int R) {
    const int64_t n_rows = task->row_end - task->row_begin;
    decode_scratch_t t = decode_divide_scratch(scratch, d, n_rows, task->n_heads, R);
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t one = task_of_head(task, head, d);
        decode_pack_q(&t, p, &one, t.q + head * d * R, R);
    }
    for (bool is_done = false; !is_done;) {
        decode_start(&t, task->n_heads, R);
        decode_blocks(&t, p, task, keys, R);
        is_done = t.apart || decode_is_finite(&t, task->n_heads, R);
        t.apart = true;
    }
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
