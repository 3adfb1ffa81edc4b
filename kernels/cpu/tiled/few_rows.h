/*
 * A task of few rows: its keys in place, a short block of them at a time.
 */
#ifndef FLASH_KERNELS_CPU_TILED_FEW_ROWS_H
#define FLASH_KERNELS_CPU_TILED_FEW_ROWS_H

#include "cpu/tiled/in_place_accumulate.h"
#include "cpu/tiled/in_place_scores.h"
#include "cpu/tiled/softmax.h"
#include "cpu/tiled/totals.h"

static inline flash_range_t first_block(flash_range_t keys, int32_t B_c) {
    const flash_range_t block = {keys.begin, keys.begin + min32(B_c, keys.end - keys.begin)};
    return block;
}

/* The one after it, of keys that end before `end`. */
static inline flash_range_t next_block(flash_range_t block, int32_t end, int32_t B_c) {
    const flash_range_t rest = {block.end, end};
    return first_block(rest, B_c);
}

/* Heads number head ... head + n - 1 of the task. */
static inline cpu_task_t task_of_heads(const cpu_task_t *task, int32_t head, int32_t n, int64_t d) {
    cpu_task_t some = *task;
    some.head_kv += head;
    some.ahead.head_kv += head;
    some.n_heads = n;
    if (some.o_partial) {
        some.o_partial += head * some.partial_rows * d;
        some.lse_partial += head * some.partial_rows;
    }
    return some;
}

static inline cpu_task_t task_of_head(const cpu_task_t *task, int32_t head, int64_t d) {
    return task_of_heads(task, head, 1, d);
}

/* Bytes of K of a step; 0: a whole block of one head. */
static inline int64_t step_bytes(cpu_way_t way) {
    return way == CPU_WAY_LONE_ROWS ? VEC_ROW_STEP_BYTES
           : way == CPU_WAY_STEPS   ? VEC_STEP_BYTES
                                    : 0;
}

/* Heads that go together, of n_heads: STEP_UNIT keys of them may take half as much again as a step
 * does. And O of all of them comes and goes in each step: the level 1 cache has to hold it beside
 * two steps. */
static inline int64_t heads_together(int64_t bytes, int64_t n_heads, int64_t head_rows, int64_t d,
                                     int32_t dtype) {
    const int64_t most =
        min64(bytes * 3 / 2 / (STEP_UNIT * d * element_size(dtype)),
              STEP_O_FACTOR * VEC_STEP_BYTES / (head_rows * d * element_size(FLASH_DTYPE_FP32)));
    return most > 0 ? even_part(n_heads, most) : 1;
}

/* Keys of a step of heads that have key_bytes together, of `most`. */
static inline int32_t step_keys(int64_t bytes, int64_t key_bytes, int32_t most) {
    const int64_t n = bytes / key_bytes / STEP_UNIT * STEP_UNIT;
    if (bytes == 0)
        return most;
    return n < STEP_UNIT ? STEP_UNIT : (int32_t)min64(n, most);
}

/* Asks for part i of n_parts of n keys of the first head. */
ALWAYS_INLINE void request_share(const in_place_t *keys, int32_t dtype, int64_t d, int32_t n,
                                 int64_t i, int64_t n_parts) {
    const int64_t first = i * n / n_parts;
    request_ahead(keys, dtype, d, first, (i + 1) * n / n_parts - first, STEPS_NEAR);
}

/* A block of keys, and how it is gone through. */
typedef struct in_place_block {
    flash_range_t keys;
    int32_t end;       /* of the task's keys */
    int32_t step_keys; /* as many as the block where there are no steps */
    int32_t n_asked;   /* heads of the task (in_place_tensor_t) */
    bool asks;         /* keys are prefetched */
} in_place_block_t;

/* P of all rows. Where a block has several steps, V of the second one is prefetched already, so
 * that memory does not rest meanwhile; v is the first one. */
ALWAYS_INLINE void softmax_in_place(const tile_scratch_t *t, const flash_params_t *p, int32_t dtype,
                                    const in_place_t *v, const in_place_block_t *block,
                                    bool all_see) {
    const softmax_rule_t rule = softmax_rule(p);
    const int32_t n_keys = block->keys.end - block->keys.begin, n = block->step_keys;
    const int64_t n_columns = round_up(n_keys, WORD_ELEMENTS);
    const int32_t most = block->asks ? IN_PLACE_KEYS : LONE_ROW_KEYS;
    const bool whole = all_see && n_keys == most && !rule.rewrites;
    const bool asks = n < n_keys && block->asks;
    in_place_t next = *v;
    for (int64_t row = 0; row < t->n_rows; row++) {
        const int64_t i = row % t->head_rows;
        if (asks)
            request_share(&next, dtype, t->d, n, i, t->head_rows);
        if (i + 1 == t->head_rows)
            to_next_head(&next);
        if (whole)
            scores_to_p(t, row, 0, most, &rule);
        else
            softmax_row(t, row_columns(t, block->keys, row), row, &rule, n_columns);
    }
}

/* A block of keys of all the task's heads, K and then V, in steps: where heads lie side by side,
 * those follow the order of memory. */
ALWAYS_INLINE void attend_in_place(const tile_scratch_t *t, const flash_params_t *p,
                                   const cpu_task_t *task, int32_t dtype,
                                   const in_place_block_t *block) {
    const in_place_tensor_t from_k = {p->k, &p->k_stride, t->d, dtype, block->n_asked};
    const in_place_tensor_t from_v = {p->v, &p->v_stride, t->d, dtype, block->n_asked};
    const int32_t n = block->step_keys, end = block->end;
    const flash_range_t keys = block->keys, first = first_block(keys, n);
    const bool all_see = rows_see(t, keys);
    for (flash_range_t s = first; s.begin < s.end; s = next_block(s, keys.end, n)) {
        in_place_t k = rows_in_place(task, &from_k, s, end);
        k.column = s.begin - keys.begin;
        score_rows(t, dtype, &k, s.end - s.begin);
    }
    in_place_t v = rows_in_place(task, &from_v, first, end);
    softmax_in_place(t, p, dtype, &v, block, all_see);
    for (flash_range_t s = first; s.begin < s.end; s = next_block(s, keys.end, n)) {
        v = rows_in_place(task, &from_v, s, end);
        v.column = s.begin - keys.begin;
        accumulate_in_place(t, dtype, &v, s, all_see);
    }
}

/* After the last block: the columns of O, which are in the order of pairs.h. */
ALWAYS_INLINE void sort_columns(const tile_scratch_t *t, int32_t dtype) {
    for (int64_t row = 0; row < t->n_rows; row++) {
        for (int64_t i = 0; t->d - i >= 2 * VEC_WIDTH; i += 2 * VEC_WIDTH) {
            float *o = t->o + row * t->d_pad + i;
            vec_t pair[2];
            load_pair(FLASH_DTYPE_FP32, o, pair);
            sort_pair(dtype, pair);
            vec_store(FLASH_DTYPE_FP32, o, pair[0]);
            vec_store(FLASH_DTYPE_FP32, o + VEC_WIDTH, pair[1]);
        }
    }
}

/* A block of keys of all heads, some of them together, before the next one: where they lie side by
 * side, that is near the order of memory. */
ALWAYS_INLINE void attend_few_rows(const tile_scratch_t *t, const flash_params_t *p,
                                   const cpu_task_t *task, int32_t dtype, int32_t B_c,
                                   flash_range_t keys) {
    const int32_t block_keys = min32(B_c, in_place_keys(task->way));
    const int64_t bytes = step_bytes(task->way);
    const int32_t most = (int32_t)heads_together(bytes, task->n_heads, t->head_rows, t->d, dtype);
    const int32_t n_keys = step_keys(bytes, most * t->d * element_size(dtype), block_keys);
    in_place_block_t block = {.end = keys.end,
                              .step_keys = n_keys,
                              .n_asked = task->n_heads,
                              .asks = task->way != CPU_WAY_LONE_ROWS};
    while (keys.begin < keys.end) {
        block.keys = cpu_first_keys(task, keys, block_keys);
        for (int32_t head = 0; head < task->n_heads; head += most) {
            const int32_t n = min32(most, task->n_heads - head);
            const cpu_task_t some = task_of_heads(task, head, n, t->d);
            const tile_scratch_t rows = rows_of_heads(t, head, n);
            attend_in_place(&rows, p, &some, dtype, &block);
        }
        end_block(t, block.keys, PART_KEYS_IN_PLACE);
        keys.begin = block.keys.end;
    }
    add_parts(t);
    sort_columns(t, dtype);
}

#endif
