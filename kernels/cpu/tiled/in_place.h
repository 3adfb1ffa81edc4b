/*
 * Few rows read K and V in place. The rows of a head lie far apart, and the processor does not
 * predict them, so that keys are prefetched while those before them are used: K during the scores,
 * V during P V, a row for each row that is used.
 */
#ifndef FLASH_KERNELS_CPU_TILED_IN_PLACE_H
#define FLASH_KERNELS_CPU_TILED_IN_PLACE_H

#include "cpu/cpu_kernel.h"
#include "cpu/rows.h"
#include "cpu/tiled/arithmetic.h"
#include "cpu/tiled/prefetch_part.h"

/* Says whether a micro-kernel of that number of rows, a constant, prefetches keys. One row of fp32
 * per head does not, where the family has a way for it (CPU_WAY_SINGLE_ROWS). */
ALWAYS_INLINE bool prefetches_keys(int32_t dtype, const int rows) {
    return VEC_SINGLE_ROW_STEP_BYTES == 0 || dtype != FLASH_DTYPE_FP32 || rows > 1;
}

ALWAYS_INLINE int32_t in_place_keys(cpu_way_t way) {
    return way == CPU_WAY_SINGLE_ROWS ? SINGLE_ROW_KEYS : IN_PLACE_KEYS;
}

/* A span is rows first ... first + n - 1 of each head. */
typedef struct row_span {
    int64_t first;
    int n;
} row_span_t;

/* This is K or V of a task, and how many of its heads are prefetched in turn. */
typedef struct in_place_tensor {
    cpu_kv_t kv;
    int64_t d;
    int32_t dtype;
    int32_t heads_prefetched;
} in_place_tensor_t;

/* These are keys of some heads in place, and as many that are prefetched meanwhile. */
typedef struct in_place {
    const char *data; /* of the first head */
    const char *prefetch;
    int64_t stride; /* elements from key to key */
    int64_t head_bytes;
    int32_t n_heads;
    int32_t column; /* of S: the first key's */
    bool adjoin;    /* a row begins where another one ends: prefetching each part's first lines then
                     * covers the lines that two rows share */
    const struct quant_rows *quantised; /* rows of quantised blocks, of one head; column counts them
                                         * then, and the other members mean nothing */
} in_place_t;

/* Returns what to prefetch while `keys` are used: the task's next keys, before `end`, then what the
 * thread reads next; `keys` themselves where those are fewer or not known. */
static inline cpu_prefetch_t after_keys(const cpu_task_t *task, flash_range_t keys, int32_t end) {
    const cpu_prefetch_t self = {keys, task->head_kv}, next = {{keys.end, end}, task->head_kv};
    const cpu_prefetch_t after = keys.end < end ? next : task->prefetch;
    const bool enough = after.keys.end - after.keys.begin >= keys.end - keys.begin;
    return enough ? after : self;
}

/* Returns keys of the task's heads that begin at element `first`, with those at
 * `prefetch` to be prefetched. */
ALWAYS_INLINE in_place_t rows_between(const cpu_task_t *task, const in_place_tensor_t *from,
                                      int64_t first, int64_t prefetch) {
    const flash_strides_t *stride = from->kv.stride;
    const bool adjoin =
        stride->seq == from->d || (from->heads_prefetched > 1 && stride->head == from->d);
    const in_place_t rows = {.data = element_at(from->kv.data, first, from->dtype),
                             .prefetch = element_at(from->kv.data, prefetch, from->dtype),
                             .stride = stride->seq,
                             .head_bytes = stride->head * element_size(from->dtype),
                             .n_heads = task->n_heads,
                             .adjoin = adjoin};
    return rows;
}

/* Returns `keys` of the task's heads. The task's keys end at `end`. */
ALWAYS_INLINE in_place_t rows_in_place(const cpu_task_t *task, const in_place_tensor_t *from,
                                       flash_range_t keys, int32_t end) {
    const cpu_prefetch_t after = after_keys(task, keys, end);
    const flash_kv_run_t run = cpu_key_run(task, keys.begin);
    const flash_kv_run_t next_run = cpu_key_run(task, after.keys.begin);
    return rows_between(task, from, flash_kv_offset(from->kv.stride, &run, task->head_kv),
                        flash_kv_offset(from->kv.stride, &next_run, after.head_kv));
}

/* Returns `keys`, which lie in one page. The keys that follow are prefetched where as many of them
 * lie in one page. */
static inline in_place_t rows_of_page(const flash_params_t *p, const cpu_task_t *task,
                                      const in_place_tensor_t *from, flash_range_t keys,
                                      int32_t end) {
    const cpu_prefetch_t after = after_keys(task, keys, end);
    const flash_kv_run_t run = cpu_page_run(p, task, from->kv.table, keys.begin);
    const flash_kv_run_t next_run = cpu_page_run(p, task, from->kv.table, after.keys.begin);
    const bool enough = flash_kv_left(&next_run) >= (int64_t)keys.end - keys.begin;
    const int64_t first = flash_kv_offset(from->kv.stride, &run, task->head_kv);
    const int64_t next = flash_kv_offset(from->kv.stride, &next_run, after.head_kv);
    return rows_between(task, from, first, enough ? next : first);
}

ALWAYS_INLINE in_place_t keys_from(const in_place_t *keys, int32_t dtype, int32_t n) {
    const int64_t bytes = n * keys->stride * element_size(dtype);
    in_place_t rest = *keys;
    rest.data += bytes;
    rest.prefetch += bytes;
    rest.column += n;
    return rest;
}

/* Prefetches rows first ... first + n - 1, of d elements, of the first head's next keys to the
 * level 2 cache. */
ALWAYS_INLINE void prefetch_next_keys(const in_place_t *keys, int32_t dtype, int64_t d,
                                      int64_t first, int64_t n) {
    const int64_t bytes = d * element_size(dtype);
    for (int64_t i = first; i < first + n; i++) {
        const char *row = element_at(keys->prefetch, i * keys->stride, dtype);
        prefetch_part(row, bytes, false);
        if (!keys->adjoin)
            prefetch_line_to(row + bytes - 1, false);
    }
}

ALWAYS_INLINE void to_next_head(in_place_t *keys) {
    keys->data += keys->head_bytes;
    keys->prefetch += keys->head_bytes;
}

#endif
