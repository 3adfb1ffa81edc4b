/*
 * Few rows: K and V where the caller has them. The rows of a head lie far apart, and the processor
 * does not foresee them, so that keys are asked for while those before them are used: for K beside
 * the scores, for V beside P V, a row for each that is used, and some beside the softmax.
 */
#ifndef FLASH_KERNELS_CPU_TILED_IN_PLACE_H
#define FLASH_KERNELS_CPU_TILED_IN_PLACE_H

#include "cpu/cpu_kernel.h"
#include "cpu/rows.h"
#include "cpu/tiled/arithmetic.h"
#include "cpu/tiled/request.h"

/* Keys of a block. What is asked for must neither come late nor be gone when it is used. */
enum { IN_PLACE_KEYS = 32 };

/* The same where nothing is asked for. */
enum { LONE_ROW_KEYS = 64 };

/* Whether a head with so many rows asks for keys. A lone row of fp32 multiplies each vector of K or
 * V just once: where the processor then looks far enough ahead for itself, requests only cost. */
ALWAYS_INLINE bool asks_ahead(int32_t dtype, int64_t head_rows) {
    return VEC_ROW_STEP_BYTES == 0 || dtype != FLASH_DTYPE_FP32 || head_rows > 1;
}

ALWAYS_INLINE int32_t in_place_keys(int32_t dtype, int64_t head_rows) {
    return asks_ahead(dtype, head_rows) ? IN_PLACE_KEYS : LONE_ROW_KEYS;
}

/* Some keys of some heads in place, and as many that are asked for meanwhile. */
typedef struct in_place {
    const char *data; /* of the first head */
    const char *ahead;
    int64_t stride; /* elements from key to key */
    int64_t head_bytes;
    int32_t n_heads;
    int32_t column; /* of S: the first key's */
    bool adjoin;    /* a row begins where another one ends: all of the lines that both are in are
                     * asked for by asking for those where each part of a row begins */
} in_place_t;

/* What follows keys that end before `end`: the task's next ones, or what the thread reads after the
 * task. The keys themselves, where those are fewer or not known. */
static inline cpu_ahead_t after_keys(const cpu_task_t *task, flash_range_t keys, int32_t end) {
    const cpu_ahead_t self = {keys, task->head_kv}, next = {{keys.end, end}, task->head_kv};
    const cpu_ahead_t after = keys.end < end ? next : task->ahead;
    const bool enough = after.keys.end - after.keys.begin >= keys.end - keys.begin;
    return enough ? after : self;
}

/* Rows of d elements of the task's heads. `end`: of the task's keys. n_asked: heads whose keys are
 * asked for one after the other. */
ALWAYS_INLINE in_place_t rows_in_place(const cpu_task_t *task, int32_t n_asked, int32_t dtype,
                                       int64_t d, const void *data, const flash_strides_t *stride,
                                       flash_range_t keys, int32_t end) {
    const cpu_ahead_t after = after_keys(task, keys, end);
    const int64_t ahead = cpu_key_index_of(task, stride, after.keys.begin, after.head_kv);
    const in_place_t rows = {.data =
                                 element_at(data, cpu_key_index(task, stride, keys.begin), dtype),
                             .ahead = element_at(data, ahead, dtype),
                             .stride = stride->seq,
                             .head_bytes = stride->head * element_size(dtype),
                             .n_heads = task->n_heads,
                             .adjoin = stride->seq == d || (n_asked > 1 && stride->head == d)};
    return rows;
}

/* The same without the first n keys. */
ALWAYS_INLINE in_place_t keys_from(const in_place_t *keys, int32_t dtype, int32_t n) {
    const int64_t bytes = n * keys->stride * element_size(dtype);
    in_place_t rest = *keys;
    rest.data += bytes;
    rest.ahead += bytes;
    rest.column += n;
    return rest;
}

/* Asks for rows first ... first + n - 1, of d elements, of the first head's next keys. */
ALWAYS_INLINE void request_ahead(const in_place_t *keys, int32_t dtype, int64_t d, int64_t first,
                                 int64_t n, const bool near) {
    const int64_t bytes = d * element_size(dtype);
    for (int64_t i = first; i < first + n; i++) {
        const char *row = element_at(keys->ahead, i * keys->stride, dtype);
        request_part(row, bytes, near);
        if (!keys->adjoin)
            request_line(row + bytes - 1, near);
    }
}

ALWAYS_INLINE void to_next_head(in_place_t *keys) {
    keys->data += keys->head_bytes;
    keys->ahead += keys->head_bytes;
}

#endif
