/*
 * A task of few rows of bf16 decodes on tile registers, with K and V in place. Memory is the limit
 * then, so that tiles of mostly unused columns or rows cost nothing.
 *
 *   S^T = K Q^T   K's rows are the left operand as they lie, 16 keys by 32 columns a tile
 *   O = P V       V's rows are the right operand as they lie, likewise
 *
 * A head's rows are padded to R: 4, 8 or 16. Scores are [32 keys][R], keys i and i + 16 side by
 * side, so that lane i of each vector belongs to row i % R. Each block of keys prefetches the next
 * one (tiled/in_place.h). A block that not all rows see, or that a page boundary cuts, is copied
 * first (rows.h).
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_H
#define FLASH_KERNELS_CPU_AMX_DECODE_H

#include "cpu/amx_decode/bias.h"
#include "cpu/amx_decode/rows.h"
#include "cpu/amx_decode/scores.h"
#include "cpu/amx_decode/softmax.h"
#include "cpu/amx_decode/values.h"
#include "cpu/sink.h"

#include <math.h>
#include <string.h>

_Static_assert((int)IN_PLACE_KEYS == (int)AMX_SQUARE, "a block is two tiles of keys");

/* ---- Blocks ---- */

typedef struct decode_run {
    const flash_params_t *p;
    const cpu_task_t *task;
    const decode_rows_t *rows;
    decode_scratch_t t;
    uint32_t *bad; /* [heads], a bit for each row that is to be recomputed */
    softmax_rule_t rule;
} decode_run_t;

/* This is a block of keys of a head, and the one to prefetch meanwhile. */
typedef struct decode_block {
    decode_keys_t keys;
    decode_keys_t next;
    const decode_rows_t *edge; /* what the rows see, unless all see the whole block; else NULL */
    int32_t first;             /* the block's first key */
    const cpu_holes_t *holes;  /* its keys in holes; NULL: none */
} decode_block_t;

/* Adds the pending P V to O. The block's own P V is pending then. */
ALWAYS_INLINE void decode_attend(const decode_run_t *run, int64_t head, const decode_block_t *block,
                                 decode_pending_t *pending, int R) {
    const decode_scratch_t *t = &run->t;
    decode_score(t, &block->keys.k, &block->next.k, t->q + head * t->d * R, R);
    decode_values(t, pending, &block->next.v, R);
    if (run->rule.rewrites)
        rewrite_scores(t->s, AMX_SQUARE * R, &run->rule);
    if (run->rule.has_bias)
        decode_add_bias(t, &run->p->bias, head, block->first, R);
    if (block->edge)
        hide_unseen_keys(t, block->edge, block->first, R);
    if (block->holes)
        hide_holes_from_rows(t, block->holes, R);
    decode_softmax(t, &block->next, head, vec_set1(run->rule.to_log2), R);
    *pending = (decode_pending_t){t->o + head * t->d_v * R, block->keys.v};
}

ALWAYS_INLINE decode_keys_t edges_in_place(const decode_scratch_t *t) {
    const decode_keys_t keys = {edge_in_place(t->k_edge, t->d), edge_in_place(t->v_edge, t->d_v)};
    return keys;
}

/* Attends to a copy of a block of a head. Returns what is pending. */
ALWAYS_INLINE decode_pending_t decode_copy(const decode_run_t *run, int64_t head,
                                           flash_range_t keys, const edge_rows_t *from,
                                           const decode_keys_t *next, decode_pending_t pending,
                                           int R) {
    const decode_scratch_t *t = &run->t;
    cpu_holes_t holes;
    decode_values(t, &pending, NULL, R); /* the pending V may be in the same copy */
    run->bad[head] |= copy_edge(t, run->rows, keys, from);
    const decode_block_t block = {.keys = edges_in_place(t),
                                  .next = *next,
                                  .edge = run->rows,
                                  .first = keys.begin,
                                  .holes = cpu_holes_of(run->p, run->task, keys, &holes)};
    decode_attend(run, head, &block, &pending, R);
    return pending;
}

/* Does the same for a constant R, compiled apart from blocks in place, which are many more. */
NEVER_INLINE decode_pending_t decode_copy_padded(const decode_run_t *run, int64_t head,
                                                 flash_range_t keys, const edge_rows_t *from,
                                                 const decode_keys_t *next,
                                                 decode_pending_t pending, int R) {
    if (R == 4)
        return decode_copy(run, head, keys, from, next, pending, 4);
    if (R == 8)
        return decode_copy(run, head, keys, from, next, pending, 8);
    return decode_copy(run, head, keys, from, next, pending, 16);
}

/* Attends to a block that not all rows see. Returns what is pending. */
NEVER_INLINE decode_pending_t decode_edge(const decode_run_t *run, int64_t head, flash_range_t keys,
                                          const decode_keys_t *next, decode_pending_t pending,
                                          int R) {
    const flash_params_t *p = run->p;
    const cpu_task_t head_task = task_of_head(run->task, (int32_t)head, run->t.d_v);
    const int32_t dtype = FLASH_DTYPE_BF16;
    const edge_rows_t from = {
        .k = cursor_at_keys(&head_task, dtype, run->t.d, p->k, &p->k_stride, keys),
        .v = cursor_at_keys(&head_task, dtype, run->t.d_v, p->v, &p->v_stride, keys)};
    return decode_copy_padded(run, head, keys, &from, next, pending, R);
}

/* Attends to a block in pages that not all rows see, or that a page boundary cuts; the task's keys
 * end at `end`. Returns what is pending. */
NEVER_INLINE decode_pending_t decode_pages(const decode_run_t *run, int64_t head,
                                           flash_range_t keys, int32_t end,
                                           decode_pending_t pending, int R) {
    const flash_params_t *p = run->p;
    const cpu_task_t head_task = task_of_head(run->task, (int32_t)head, run->t.d_v);
    const paged_keys_t k = {p, &head_task, cpu_kv_k(p), FLASH_DTYPE_BF16};
    const paged_keys_t v = {p, &head_task, cpu_kv_v(p), FLASH_DTYPE_BF16};
    const flash_range_t rest = {keys.end, end}, after = cpu_first_keys(rest, AMX_SQUARE);
    const decode_keys_t next = edges_in_place(&run->t);
    const edge_rows_t from = {.k = cursor_at_pages(&k, run->t.d, keys),
                              .v = cursor_at_pages(&v, run->t.d_v, keys),
                              .k_prefetch = cursor_at_pages(&k, run->t.d, after),
                              .v_prefetch = cursor_at_pages(&v, run->t.d_v, after)};
    return decode_copy_padded(run, head, keys, &from, &next, pending, R);
}

ALWAYS_INLINE bool decodes_in_place(const decode_run_t *run, flash_range_t block) {
    return all_see_block(run->rows, block) &&
           (!cpu_is_paged(run->p) || cpu_in_one_page(run->p, block));
}

/* Attends to a block of a head, whose keys lie at `keys`, and prefetches what they say; the task's
 * keys end at `end`. */
ALWAYS_INLINE void decode_block_of_head(const decode_run_t *run, int32_t head, flash_range_t block,
                                        int32_t end, const decode_keys_t *keys, bool in_place,
                                        decode_pending_t *pending, int R) {
    if (LIKELY(in_place)) {
        const decode_block_t whole = {.keys = *keys, .next = *keys, .first = block.begin};
        decode_attend(run, head, &whole, pending, R);
    } else if (cpu_is_paged(run->p)) {
        *pending = decode_pages(run, head, block, end, *pending, R);
    } else {
        *pending = decode_edge(run, head, block, keys, *pending, R);
    }
}

/* Says whether all keys of the block lie in holes. */
static inline bool decode_in_holes(const decode_run_t *run, flash_range_t block) {
    cpu_holes_t holes;
    return cpu_holes_hide(cpu_holes_of(run->p, run->task, block, &holes), block);
}

/* Attends to a block of all heads, but for those from which a mask hides it; the task's keys end at
 * `end`. */
ALWAYS_INLINE void decode_block_of_heads(const decode_run_t *run, flash_range_t block, int32_t end,
                                         decode_pending_t *pending, int R) {
    const flash_params_t *p = run->p;
    const cpu_task_t *task = run->task;
    const bool in_place = decodes_in_place(run, block), paged = cpu_is_paged(p);
    const in_place_tensor_t from_k = {cpu_kv_k(p), run->t.d, FLASH_DTYPE_BF16, task->n_heads};
    const in_place_tensor_t from_v = {cpu_kv_v(p), run->t.d_v, FLASH_DTYPE_BF16, task->n_heads};
    in_place_t k = paged ? rows_of_page(p, task, &from_k, block, end)
                         : rows_in_place(task, &from_k, block, end);
    in_place_t v = paged ? rows_of_page(p, task, &from_v, block, end)
                         : rows_in_place(task, &from_v, block, end);
    for (int32_t head = 0; head < task->n_heads; head++) {
        const decode_keys_t keys = {k, v};
        if (p->bias.mask == NULL || !decode_hides(&run->t, &p->bias, run->rows, head, block, R))
            decode_block_of_head(run, head, block, end, &keys, in_place, pending, R);
        to_next_head(&k);
        to_next_head(&v);
    }
}

/* Attends to all keys: each block of all heads before the next one. */
ALWAYS_INLINE void decode_blocks(const decode_run_t *run, int R) {
    const unsigned control = decode_configure(R);
    decode_pending_t pending = {.o = NULL};
    flash_range_t keys = run->rows->any;
    while (keys.begin < keys.end) {
        const flash_range_t block = cpu_first_keys(keys, AMX_SQUARE);
        if (!decode_in_holes(run, block))
            decode_block_of_heads(run, block, keys.end, &pending, R);
        keys.begin = block.end;
    }
    decode_values(&run->t, &pending, NULL, R);
    tiles_release(control);
}

/* ---- O ---- */

/* Stores the rows of a head, normalised; zeros where a sum is zero. Returns a bit for each row that
 * is empty or not sound. */
ALWAYS_INLINE uint32_t decode_store(const decode_scratch_t *t, const flash_params_t *p,
                                    const cpu_task_t *task, int64_t head, int R) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const bool is_wide = task->o_partial || p->o_dtype == FLASH_DTYPE_FP32;
    const int32_t dtype = is_wide ? FLASH_DTYPE_FP32 : FLASH_DTYPE_BF16;
    void *o = task->o_partial ? (void *)task->o_partial : p->o;
    uint32_t bad = 0;
    float sums[16];
    _mm512_storeu_ps(sums, rows_sum(_mm512_load_ps(t->sum + head * 16), R));
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < t->n_rows; row++, r = cpu_next_row(p, task, r)) {
        const int64_t at = task->o_partial ? row * t->d_v : cpu_row_index(task, &p->o_stride, r);
        const __mmask16 seen = sums[row] != 0 ? 0xffff : 0;
        bad |= (uint32_t)!is_sound(sums[row]) << row;
        const float reference = t->reference[head * 16 + row] * LN_2;
        const float sink = cpu_row_sink(p, task, r);
        const vec_t inverse = vec_set1(1 / sum_with_sink(sums[row], sink, reference));
        for (int64_t c = 0; c < t->v_columns; c++) {
            const float *from = t->o + head * t->d_v * R + (2 * c * R + row) * VEC_WIDTH;
            const vec_t a = _mm512_maskz_mul_ps(seen, _mm512_load_ps(from), inverse);
            const vec_t b =
                _mm512_maskz_mul_ps(seen, _mm512_load_ps(from + R * VEC_WIDTH), inverse);
            void *to = element_at_mutable(o, at + c * AMX_SQUARE, dtype);
            vec_store(dtype, to, _mm512_permutex2var_ps(a, low, b));
            vec_store(dtype, element_at_mutable(to, VEC_WIDTH, dtype),
                      _mm512_permutex2var_ps(a, high, b));
        }
        if (cpu_wants_lse(p, task))
            cpu_store_lse(p, task, row, r, row_lse(reference, sums[row]));
    }
    return bad;
}

/* ---- Tasks ---- */

ALWAYS_INLINE void decode_start(const decode_scratch_t *t, int64_t n_heads, int R) {
    memset(t->o, 0, (size_t)(n_heads * t->d_v * R) * sizeof *t->o);
    memset(t->sum, 0, (size_t)n_heads * 64);
    for (int64_t i = 0; i < n_heads * 16; i++)
        t->reference[i] = -INFINITY;
}

ALWAYS_INLINE void decode_padded(decode_run_t *run, head_dims_t dims, void *scratch, int R) {
    const flash_params_t *p = run->p;
    const cpu_task_t *task = run->task;
    const int64_t n_rows = task->row_end - task->row_begin;
    decode_scratch_t *t = &run->t;
    *t = decode_divide_scratch(scratch, dims, n_rows, task->n_heads, R);
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t head_task = task_of_head(task, head, t->d_v);
        decode_pack_q(t, p, &head_task, t->q + head * t->d * R, R);
        if (run->rule.has_bias)
            find_bias_rows(p, &head_task, n_rows, t->bias_rows + head * R);
    }
    for (bool is_done = false; !is_done;) {
        decode_start(t, task->n_heads, R);
        decode_blocks(run, R);
        is_done = t->apart || decode_is_finite(t, task->n_heads, R);
        t->apart = true;
    }
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t head_task = task_of_head(task, head, t->d_v);
        run->bad[head] |= decode_store(t, p, &head_task, head, R);
    }
}

/* Decodes the task. bad[head] returns a bit for each row to recompute: it sees infinity or NaN that
 * was left out, or decode_store() says so. */
ALWAYS_INLINE void amx_decode(const flash_params_t *p, const cpu_task_t *task, head_dims_t dims,
                              void *scratch, uint32_t *bad) {
    const int64_t n_rows = task->row_end - task->row_begin;
    const decode_rows_t rows = decode_find_rows(p, task);
    decode_run_t run = {.p = p, .task = task, .rows = &rows, .bad = bad, .rule = softmax_rule(p)};
    memset(bad, 0, (size_t)task->n_heads * sizeof *bad);
    if (n_rows <= 4)
        decode_padded(&run, dims, scratch, 4);
    else if (n_rows <= 8)
        decode_padded(&run, dims, scratch, 8);
    else
        decode_padded(&run, dims, scratch, 16);
}

#endif
