/*
 * In this file a task of few rows attends to its keys in place, a short block of them at a time.
 */
#ifndef FLASH_KERNELS_CPU_TILED_FEW_ROWS_H
#define FLASH_KERNELS_CPU_TILED_FEW_ROWS_H

#include "cpu/tiled/copy_pages.h"
#include "cpu/tiled/decoded_block.h"
#include "cpu/tiled/in_place_accumulate.h"
#include "cpu/tiled/in_place_scores.h"
#include "cpu/tiled/quant_scores.h"
#include "cpu/tiled/softmax.h"
#include "cpu/tiled/totals.h"

/* Returns the task of heads number head ... head + n - 1. */
static inline cpu_task_t task_of_heads(const cpu_task_t *task, int32_t head, int32_t n,
                                       int64_t d_v) {
    cpu_task_t part = *task;
    part.head_kv += head;
    part.prefetch.head_kv += head;
    part.n_heads = n;
    if (part.o_partial) {
        part.o_partial += head * part.partial_rows * d_v;
        part.lse_partial += head * part.partial_rows;
    }
    return part;
}

static inline cpu_task_t task_of_head(const cpu_task_t *task, int32_t head, int64_t d_v) {
    return task_of_heads(task, head, 1, d_v);
}

/* Returns the bytes of K of a step; 0 where a step is a whole block of one head. */
static inline int64_t step_bytes(cpu_way_t way, int32_t dtype, int64_t head_rows) {
    const bool is_light = head_rows == 1 && element_size(dtype) == 2;
    return way == CPU_WAY_SINGLE_ROWS ? VEC_SINGLE_ROW_STEP_BYTES
           : way == CPU_WAY_STEPS     ? VEC_STEP_BYTES * (is_light ? SINGLE_ROW_STEP_FACTOR : 1)
                                      : 0;
}

/* Returns the elements of a key of K or of V, whichever has more. */
ALWAYS_INLINE int64_t widest_key(const tile_scratch_t *t) {
    return max64(t->d, t->d_v);
}

/* Returns how many of n_heads heads a step takes together. STEP_UNIT keys of them may take half as
 * much again as a step. O of all of them is loaded and stored in each step, so that the level 1
 * cache has to hold it together with two steps. */
static inline int64_t heads_together(const tile_scratch_t *t, int64_t bytes, int64_t n_heads,
                                     int32_t dtype) {
    const int64_t o_bytes = t->head_rows * t->d_v * element_size(FLASH_DTYPE_FP32);
    const int64_t most = min64(bytes * 3 / 2 / (STEP_UNIT * widest_key(t) * element_size(dtype)),
                               STEP_O_FACTOR * VEC_STEP_BYTES / o_bytes);
    return most > 0 ? even_part(n_heads, most) : 1;
}

/* Returns the keys of a step, at most `most`, where all its heads have key_bytes per key. */
static inline int32_t step_keys(int64_t bytes, int64_t key_bytes, int32_t most) {
    const int64_t n = bytes / key_bytes / STEP_UNIT * STEP_UNIT;
    if (bytes == 0)
        return most;
    return n < STEP_UNIT ? STEP_UNIT : (int32_t)min64(n, most);
}

typedef struct in_place_block {
    flash_range_t keys;
    int32_t end;              /* of the task's keys */
    int32_t step_keys;        /* as many as the block where there are no steps */
    int32_t heads_prefetched; /* heads that are prefetched in turn (in_place_tensor_t) */
    bool prefetches;          /* keys are prefetched */
    int64_t index;            /* of the task's blocks */
    rows_of_blocks_t *rows;   /* where keys are in pages */
    const cpu_holes_t *holes; /* NULL: no key lies in one */
} in_place_block_t;

/* Turns the scores of a block into P; the rows are those of the task's heads. */
NEVER_INLINE void softmax_in_place(const tile_scratch_t *t, const flash_params_t *p,
                                   const cpu_task_t *task, const in_place_block_t *block,
                                   bool all_see) {
    const softmax_block_t softmax = {p, task, block->keys, softmax_rule(p), block->holes, NULL};
    const int32_t n_keys = block->keys.end - block->keys.begin;
    const int64_t n_columns = round_up(n_keys, WORD_ELEMENTS);
    const int32_t most = block->prefetches ? IN_PLACE_KEYS : SINGLE_ROW_KEYS;
    const bool is_plain = !softmax.rule.rewrites && !softmax.rule.drops && !block->holes &&
                          !flash_has_page_scales(&p->v_scale);
    const bool whole = all_see && n_keys == most && is_plain;
    for (int64_t row = 0; row < t->n_rows; row++) {
        if (whole)
            scores_to_p(t, row, 0, most, &softmax.rule, NULL);
        else
            softmax_row(t, &softmax, row, n_columns);
    }
}

/* ---- Steps ---- */

/* Returns the keys of the first step of a range. paged is a constant: keys are in pages, and a step
 * ends where its page does. */
ALWAYS_INLINE flash_range_t first_step(const flash_params_t *p, const in_place_block_t *block,
                                       flash_range_t keys, const bool paged) {
    return paged ? cpu_first_of_page(p, keys, block->step_keys)
                 : cpu_first_keys(keys, block->step_keys);
}

ALWAYS_INLINE in_place_t rows_of_step(const flash_params_t *p, const cpu_task_t *task,
                                      const in_place_tensor_t *from, const in_place_block_t *block,
                                      flash_range_t step, const bool paged) {
    in_place_t rows = paged ? rows_of_page(p, task, from, step, block->end)
                            : rows_in_place(task, from, step, block->end);
    rows.column = step.begin - block->keys.begin;
    return rows;
}

/* Attends to a block of keys of all heads of the task in steps, first K, then V. Where heads lie
 * side by side, steps follow the order of memory. paged: as first_step(). */
ALWAYS_INLINE void attend_in_place(const tile_scratch_t *t, const flash_params_t *p,
                                   const cpu_task_t *task, int32_t dtype,
                                   const in_place_block_t *block, const bool paged) {
    const in_place_tensor_t from_k = {cpu_kv_k(p), t->d, dtype, block->heads_prefetched};
    const in_place_tensor_t from_v = {cpu_kv_v(p), t->d_v, dtype, block->heads_prefetched};
    const flash_range_t first = first_step(p, block, block->keys, paged);
    const bool all_see = rows_see(t, block->keys);
    flash_range_t rest = block->keys;
    for (flash_range_t s = first; s.begin < s.end; s = first_step(p, block, rest, paged)) {
        const in_place_t k = rows_of_step(p, task, &from_k, block, s, paged);
        score_rows(t, dtype, &k, s.end - s.begin);
        rest.begin = s.end;
    }
    softmax_in_place(t, p, task, block, all_see);
    rest = block->keys;
    for (flash_range_t s = first; s.begin < s.end; s = first_step(p, block, rest, paged)) {
        const in_place_t v = rows_of_step(p, task, &from_v, block, s, paged);
        accumulate_in_place(t, dtype, &v, s, all_see);
        rest.begin = s.end;
    }
}

/* Does so where keys lie in one run. */
NEVER_INLINE void attend_run(const tile_scratch_t *t, const flash_params_t *p,
                             const cpu_task_t *task, int32_t dtype, const in_place_block_t *block) {
    attend_in_place(t, p, task, dtype, block, false);
}

/* ---- Pages ---- */

/* Attends to a block of keys of the task's one head from copies, which lie where packed keys
 * would. */
static inline void attend_copy(const tile_scratch_t *t, const flash_params_t *p,
                               const cpu_task_t *task, int32_t dtype, const in_place_block_t *block,
                               const block_rows_t *rows, const block_rows_t *next, bool all_see) {
    const int64_t head_kv = task->head_kv;
    const flash_range_t keys = block->keys;
    const int32_t n = keys.end - keys.begin, n_next = next->keys.end - next->keys.begin;
    const copied_rows_t from_k = {element_at(p->k, head_kv * p->k_stride.head, dtype), rows->k,
                                  next->k, n, n_next};
    const copied_rows_t from_v = {element_at(p->v, head_kv * p->v_stride.head, dtype), rows->v,
                                  next->v, n, n_next};
    const in_place_t k = copy_block_rows(&from_k, dtype, t->d, t->k);
    score_rows(t, dtype, &k, n);
    const in_place_t v = copy_block_rows(&from_v, dtype, t->d_v, t->v);
    softmax_in_place(t, p, task, block, all_see);
    for (flash_range_t s = keys; s.begin < keys.end; s.begin = s.end) {
        s.end = s.begin + min32(block->step_keys, keys.end - s.begin);
        const in_place_t part = keys_from(&v, dtype, s.begin - keys.begin);
        accumulate_in_place(t, dtype, &part, s, all_see);
    }
}

NEVER_INLINE void attend_copies(const tile_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task, int32_t dtype,
                                const in_place_block_t *block, bool all_see) {
    const flash_range_t rest = {block->keys.end, block->end};
    const flash_range_t after = cpu_first_keys(rest, block->keys.end - block->keys.begin);
    const block_rows_t *rows = find_block_rows(p, task, block->rows, block->index, block->keys);
    const block_rows_t *next = find_block_rows(p, task, block->rows, block->index + 1, after);
    for (int32_t head = 0; head < task->n_heads; head++) {
        const tile_scratch_t of_head = rows_of_head(t, head);
        const cpu_task_t head_task = task_of_head(task, head, t->d_v);
        attend_copy(&of_head, p, &head_task, dtype, block, rows, next, all_see);
    }
}

/* Says whether reading the block page by page gives the bits of a block in one piece: it lies in
 * one page, or all rows see it and page boundaries are ends of tiles of scores and of words. No
 * page of it is a hole. */
static inline bool page_by_page(const flash_params_t *p, const in_place_block_t *block,
                                bool all_see) {
    const flash_range_t keys = block->keys;
    return !block->holes && (cpu_in_one_page(p, keys) || (all_see && keys.begin % STEP_UNIT == 0 &&
                                                          p->pages.page_size % STEP_UNIT == 0));
}

NEVER_INLINE void attend_pages(const tile_scratch_t *t, const flash_params_t *p,
                               const cpu_task_t *task, int32_t dtype,
                               const in_place_block_t *block) {
    const bool all_see = rows_see(t, block->keys);
    if (page_by_page(p, block, all_see))
        attend_in_place(t, p, task, dtype, block, true);
    else
        attend_copies(t, p, task, dtype, block, all_see);
}

/* ---- Decoded keys, and quantised blocks ---- */

/* Attends to a block of decoded keys of the task's one head. `after` are the keys that follow. V of
 * latent tokens is the first columns of their K. */
static inline void attend_decoded(const tile_scratch_t *t, const flash_params_t *p,
                                  const cpu_task_t *task, int32_t dtype,
                                  const in_place_block_t *block, flash_range_t after) {
    const flash_range_t keys = block->keys;
    const bool all_see = rows_see(t, keys);
    in_place_t decoded = decode_k(t, p, task, dtype, keys, after);
    score_rows(t, FLASH_DTYPE_FP32, &decoded, keys.end - keys.begin);
    if (dtype != FLASH_DTYPE_LATENT_E4M3)
        decoded = decode_v(t, p, task, keys, after);
    softmax_in_place(t, p, task, block, all_see);
    accumulate_in_place(t, FLASH_DTYPE_FP32, &decoded, keys, all_see);
}

/* Attends to such a block of quantised K and V, which are read as they are. */
static inline void attend_quantised(const tile_scratch_t *t, const flash_params_t *p,
                                    const cpu_task_t *task, int32_t dtype,
                                    const in_place_block_t *block, flash_range_t after) {
    const flash_range_t keys = block->keys;
    const encoded_keys_t k = {{p, task, cpu_kv_k(p), dtype}, t->d, keys, after};
    const encoded_keys_t v = {{p, task, cpu_kv_v(p), p->v_dtype}, t->d_v, keys, after};
    const bool all_see = rows_see(t, keys);
    quant_rows_t k_rows, v_rows;
    start_quant_rows(&k, t->k, &k_rows);
    start_quant_rows(&v, t->v, &v_rows);
    score_quantised(t, dtype, &k_rows, keys.end - keys.begin);
    const in_place_t values = quant_values_of(t, &v_rows);
    softmax_in_place(t, p, task, block, all_see);
    accumulate_in_place(t, p->v_dtype, &values, keys, all_see);
}

NEVER_INLINE void attend_encoded(const tile_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, int32_t dtype,
                                 const in_place_block_t *block) {
    const flash_range_t rest = {block->keys.end, block->end};
    const flash_range_t after = cpu_first_keys(rest, block->keys.end - block->keys.begin);
    for (int32_t head = 0; head < task->n_heads; head++) {
        const tile_scratch_t of_head = rows_of_head(t, head);
        const cpu_task_t head_task = task_of_head(task, head, t->d_v);
        if (reads_quant_rows(t, p, dtype) && !block->holes)
            attend_quantised(&of_head, p, &head_task, dtype, block, after);
        else
            attend_decoded(&of_head, p, &head_task, dtype, block, after);
    }
}

/* ---- All keys ---- */

/* Brings the columns of O from the order of pairs.h into their own, at the end. */
static inline void sort_columns(const tile_scratch_t *t, int32_t dtype) {
    if (pairs_are_sorted(dtype))
        return;
    for (int64_t row = 0; row < t->n_rows; row++) {
        for (int64_t i = 0; t->d_v - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
            float *o = t->o + row * t->d_v_pad + i;
            vec_t pair[2];
            load_pair(FLASH_DTYPE_FP32, o, pair);
            sort_pair(dtype, pair);
            vec_store(FLASH_DTYPE_FP32, o, pair[0]);
            vec_store(FLASH_DTYPE_FP32, o + VEC_WIDTH, pair[1]);
        }
    }
}

/* Attends to a block of keys, unless a mask or holes hide it. */
static inline void attend_block_in_place(const tile_scratch_t *t, const flash_params_t *p,
                                         const cpu_task_t *task, int32_t dtype,
                                         const in_place_block_t *block) {
    if (skips_block(t, p, task, block->keys, block->holes))
        return;
    if (decodes_keys(p, dtype))
        attend_encoded(t, p, task, dtype, block);
    else if (cpu_is_paged(p))
        attend_pages(t, p, task, dtype, block);
    else
        attend_run(t, p, task, dtype, block);
}

/* Does so for heads number head ... head + n - 1 of the task. */
static inline void attend_block_of_heads(const tile_scratch_t *t, const flash_params_t *p,
                                         const cpu_task_t *task, int32_t dtype,
                                         const in_place_block_t *block, int32_t head, int32_t n) {
    if (n == task->n_heads) {
        attend_block_in_place(t, p, task, dtype, block);
        return;
    }
    const cpu_task_t part = task_of_heads(task, head, n, t->d_v);
    const tile_scratch_t rows = rows_of_heads(t, head, n);
    attend_block_in_place(&rows, p, &part, dtype, block);
}

/* Attends to all keys, block by block. Each block is read for all heads, some of them together,
 * before the next one: where heads lie side by side, that is near the order of memory. */
NEVER_INLINE void attend_few_rows(const tile_scratch_t *t, const flash_params_t *p,
                                  const cpu_task_t *task, int32_t dtype, int32_t B_c,
                                  flash_range_t keys) {
    const int32_t block_keys = min32(B_c, in_place_keys(task->way));
    const int64_t bytes = step_bytes(task->way, dtype, t->head_rows);
    const int32_t most = (int32_t)heads_together(t, bytes, task->n_heads, dtype);
    const int32_t n_keys = step_keys(bytes, most * widest_key(t) * element_size(dtype), block_keys);
    rows_of_blocks_t rows_of_blocks;
    cpu_holes_t holes;
    in_place_block_t block = {.end = keys.end,
                              .step_keys = n_keys,
                              .heads_prefetched = task->n_heads,
                              .prefetches = task->way != CPU_WAY_SINGLE_ROWS,
                              .rows = &rows_of_blocks};
    start_block_rows(&rows_of_blocks);
    while (keys.begin < keys.end) {
        block.keys = cpu_first_keys(keys, block_keys);
        block.holes = cpu_holes_of(p, task, block.keys, &holes);
        for (int32_t head = 0; head < task->n_heads; head += most)
            attend_block_of_heads(t, p, task, dtype, &block, head,
                                  min32(most, task->n_heads - head));
        end_block(t, block.keys, PART_KEYS_IN_PLACE);
        keys.begin = block.keys.end;
        block.index++;
    }
    add_parts(t);
    if (!decodes_keys(p, dtype))
        sort_columns(t, dtype);
}

#endif
