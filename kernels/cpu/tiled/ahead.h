/*
 * Rows of K and V that a task of few rows asks for while it reads others. The rows of a head lie
 * far apart, and the processor does not foresee them.
 */
#ifndef FLASH_KERNELS_CPU_TILED_AHEAD_H
#define FLASH_KERNELS_CPU_TILED_AHEAD_H

#include "cpu/rows.h"
#include "cpu/vector.h"

/* A task's own rows of K are asked for so many keys ahead. */
enum { KEYS_AHEAD = 32 };

/* Rows of K or of V, key after key all heads of a group. */
typedef struct row_cursor {
    const char *row;
    int64_t to_next_head; /* bytes */
    int64_t to_next_key;  /* from the last head to the first one of the next key */
    int64_t row_bytes;
    int64_t n_left;
    int32_t n_heads;
    int32_t head;
} row_cursor_t;

static inline row_cursor_t cursor_at(const cpu_task_t *task, int32_t dtype, int64_t d,
                                     const void *data, const flash_strides_t *stride,
                                     cpu_ahead_t rows) {
    const int64_t size = element_size(dtype), n_keys = rows.keys.end - (int64_t)rows.keys.begin;
    row_cursor_t cursor = {.to_next_head = stride->head * size,
                           .to_next_key = (stride->seq - (rows.n_heads - 1) * stride->head) * size,
                           .row_bytes = d * size,
                           .n_left = n_keys > 0 ? n_keys * rows.n_heads : 0,
                           .n_heads = rows.n_heads};
    if (cursor.n_left > 0)
        cursor.row =
            element_at(data, cpu_key_index_of(task, stride, rows.keys.begin, rows.head_kv), dtype);
    return cursor;
}

/* Brings the next row, if there is one, to the level 2 cache. */
ALWAYS_INLINE void prefetch_next(row_cursor_t *cursor) {
    if (cursor->n_left == 0)
        return;
    for (int64_t i = 0; i < cursor->row_bytes; i += 64)
        __builtin_prefetch(cursor->row + i, 0, 2);
    cursor->n_left--;
    if (++cursor->head < cursor->n_heads) {
        cursor->row += cursor->to_next_head;
    } else {
        cursor->head = 0;
        cursor->row += cursor->to_next_key;
    }
}

/* What to ask for beside the task's keys, a row of each a key. */
typedef struct rows_ahead {
    row_cursor_t k;
    row_cursor_t v;
} rows_ahead_t;

/* What the plan names, or else the task's own rows. */
static inline rows_ahead_t start_ahead(const flash_params_t *p, const cpu_task_t *task,
                                       int32_t dtype, int64_t d) {
    cpu_ahead_t k = task->ahead, v = task->ahead;
    if (task->ahead.n_heads == 0) {
        k = v = (cpu_ahead_t){task->keys, task->head_kv, 1};
        k.keys.begin +=
            k.keys.end - k.keys.begin < KEYS_AHEAD ? k.keys.end - k.keys.begin : KEYS_AHEAD;
    }
    const rows_ahead_t ahead = {cursor_at(task, dtype, d, p->k, &p->k_stride, k),
                                cursor_at(task, dtype, d, p->v, &p->v_stride, v)};
    return ahead;
}

#endif
