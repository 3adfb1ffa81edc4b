/*
 * Rows of K and V that a task of few rows asks for while it reads others. The rows of a head lie
 * far apart, and the processor does not foresee them.
 */
#ifndef FLASH_KERNELS_CPU_TILED_AHEAD_H
#define FLASH_KERNELS_CPU_TILED_AHEAD_H

#include "cpu/row_cursor.h"

/* A task's own rows of K are asked for so many keys ahead. */
enum { KEYS_AHEAD = 32 };

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
    const rows_ahead_t ahead = {cursor_at_keys(task, dtype, d, p->k, &p->k_stride, k),
                                cursor_at_keys(task, dtype, d, p->v, &p->v_stride, v)};
    return ahead;
}

#endif
