/*
 * Few rows, bf16: K and V where the caller has them, products on the tile registers. Memory is the
 * limit then, so that tiles of mostly unused columns or rows cost nothing.
 *
 *   S^T = K Q^T   K's rows are the left operand as they lie, 16 keys by 32 columns a tile
 *   O = P V       V's rows are the right operand as they lie, likewise
 *
 * A head's rows are padded to R: 4, 8 or 16. Scores are [32 keys][R], keys i and i + 16 side by
 * side, so that lane i of each vector belongs to row i % R. A head has a block of keys at a time,
 * which asks for the next one as tiled/in_place.h says; a block that not all rows see is copied
 * first (rows.h).
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_H
#define FLASH_KERNELS_CPU_AMX_DECODE_H

#include "cpu/amx_decode/rows.h"
#include "cpu/amx_decode/scores.h"
#include "cpu/amx_decode/softmax.h"
#include "cpu/amx_decode/values.h"

#include <math.h>
#include <string.h>

/* With fewer the vector kernel is as fast. */
enum { DECODE_MIN_KEYS = 64 };

_Static_assert((int)IN_PLACE_KEYS == (int)AMX_SQUARE, "a block is two tiles of keys");

/* ---- Blocks ---- */

/* A block of keys of a head. edge: what the rows see, where not all see the whole block, which
 * begins with key `first`; else NULL. */
ALWAYS_INLINE void decode_block(const decode_scratch_t *t, const flash_params_t *p, int64_t head,
                                in_place_t k, in_place_t v, const decode_next_t *next,
                                const decode_rows_t *edge, int32_t first, decode_pending_t *pending,
                                int R) {
    const float scale = scores_to_log2(p);
    decode_score(t, &k, &next->k, t->q + head * t->d * R, R);
    decode_values(t, pending, &next->v, R);
    if (p->softcap != 0)
        cap_scores(t->s, AMX_SQUARE * R, p->softmax_scale, p->softcap);
    if (edge)
        hide_unseen_keys(t, edge, first, R);
    decode_softmax(t, next, head, vec_set1(scale), R);
    *pending = (decode_pending_t){t->o + head * t->d * R, v};
}

/* A block that not all rows see. */
ALWAYS_INLINE decode_pending_t decode_copy(const decode_scratch_t *t, const flash_params_t *p,
                                           const decode_rows_t *rows, int64_t head,
                                           flash_range_t block, in_place_t k, in_place_t v,
                                           decode_pending_t pending, uint32_t *bad, int R) {
    const decode_next_t next = {k, v};
    decode_values(t, &pending, NULL, R); /* its V may be a copy, too */
    *bad |= copy_edge(t, rows, block, &k, &v);
    decode_block(t, p, head, edge_in_place(t, t->k_edge), edge_in_place(t, t->v_edge), &next, rows,
                 block.begin, &pending, R);
    return pending;
}

/* The same, out of the way of the other blocks, which are many more. Adds to *bad the rows that see
 * what V must not have on tiles; returns what is pending. */
NEVER_INLINE decode_pending_t decode_edge(const decode_scratch_t *t, const flash_params_t *p,
                                          const decode_rows_t *rows, int64_t head,
                                          flash_range_t block, in_place_t k, in_place_t v,
                                          decode_pending_t pending, uint32_t *bad, int R) {
    if (R == 4)
        return decode_copy(t, p, rows, head, block, k, v, pending, bad, 4);
    if (R == 8)
        return decode_copy(t, p, rows, head, block, k, v, pending, bad, 8);
    return decode_copy(t, p, rows, head, block, k, v, pending, bad, 16);
}

/* A block of keys of all heads before the next one, as attend_few_rows() does. bad: of each head,
 * the rows that decode_edge() finds. */
ALWAYS_INLINE void decode_blocks(const decode_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, const decode_rows_t *rows, uint32_t *bad,
                                 int R) {
    const unsigned control = decode_configure(R);
    decode_pending_t pending = {.o = NULL};
    flash_range_t keys = rows->any;
    while (keys.begin < keys.end) {
        const flash_range_t block = first_block(keys, AMX_SQUARE);
        const bool all_see = all_see_block(rows, block.begin);
        in_place_t k = rows_in_place(task, task->n_heads, FLASH_DTYPE_BF16, t->d, p->k,
                                     &p->k_stride, block, keys.end);
        in_place_t v = rows_in_place(task, task->n_heads, FLASH_DTYPE_BF16, t->d, p->v,
                                     &p->v_stride, block, keys.end);
        for (int32_t head = 0; head < task->n_heads; head++) {
            const decode_next_t next = {k, v};
            if (LIKELY(all_see))
                decode_block(t, p, head, k, v, &next, NULL, 0, &pending, R);
            else
                pending = decode_edge(t, p, rows, head, block, k, v, pending, bad + head, R);
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

/* bad: as decode_blocks(). */
ALWAYS_INLINE void decode_padded(const flash_params_t *p, const cpu_task_t *task, int64_t d,
                                 const decode_rows_t *rows, void *scratch, uint32_t *bad, int R) {
    const int64_t n_rows = task->row_end - task->row_begin;
    decode_scratch_t t = decode_divide_scratch(scratch, d, n_rows, task->n_heads, R);
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t one = task_of_head(task, head, d);
        decode_pack_q(&t, p, &one, t.q + head * d * R, R);
    }
    for (bool is_done = false; !is_done;) {
        decode_start(&t, task->n_heads, R);
        decode_blocks(&t, p, task, rows, bad, R);
        is_done = t.apart || decode_is_finite(&t, task->n_heads, R);
        t.apart = true;
    }
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t one = task_of_head(task, head, d);
        decode_store(&t, p, &one, head, R);
    }
}

/* Whether amx_decode() can, and pays: for keys that nobody has packed; always for rows that the
 * vector kernel would pack, since such a task may have several heads (cpu_reads_in_place()). What
 * the rows see, into *rows. */
static inline bool decodes_on_tiles(const flash_config_t *config, const flash_params_t *p,
                                    const cpu_task_t *task, decode_rows_t *rows) {
    const int64_t n_rows = task->row_end - task->row_begin;
    if (!amx_decodes(config, n_rows, p->d_head) || task->packed != NULL)
        return false;
    *rows = decode_find_rows(p, task);
    return n_rows > AMX_MIN_ROWS || rows->any.end - rows->any.begin >= DECODE_MIN_KEYS;
}

ALWAYS_INLINE void amx_decode(const flash_params_t *p, const cpu_task_t *task, int64_t d,
                              const decode_rows_t *rows, void *scratch, uint32_t *bad) {
    const int64_t n_rows = task->row_end - task->row_begin;
    memset(bad, 0, (size_t)task->n_heads * sizeof *bad);
    if (n_rows <= 4)
        decode_padded(p, task, d, rows, scratch, bad, 4);
    else if (n_rows <= 8)
        decode_padded(p, task, d, rows, scratch, bad, 8);
    else
        decode_padded(p, task, d, rows, scratch, bad, 16);
}

#endif
