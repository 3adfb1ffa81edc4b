/*
 * Where the packed rows of a task lie in the tensors (see cpu_kernel.h), and which keys they see.
 */
#ifndef FLASH_KERNELS_CPU_ROWS_H
#define FLASH_KERNELS_CPU_ROWS_H

#include "cpu/convert.h"
#include "cpu/cpu_kernel.h"

/* The query and the head that a packed row stands for. */
typedef struct cpu_row {
    int64_t query; /* within the sequence */
    int64_t head;
} cpu_row_t;

/* Row of the task, counted from task->row_begin. */
static inline cpu_row_t cpu_row(const flash_params_t *p, const cpu_task_t *task, int64_t row) {
    const int64_t packed = task->row_begin + row;
    const cpu_row_t r = {packed / p->group, (int64_t)task->head_kv * p->group + packed % p->group};
    return r;
}

/* The row after it: what cpu_row() would give, without a division. */
static inline cpu_row_t cpu_next_row(const flash_params_t *p, const cpu_task_t *task,
                                     cpu_row_t row) {
    const int64_t first = (int64_t)task->head_kv * p->group;
    if (++row.head == first + p->group) {
        row.head = first;
        row.query++;
    }
    return row;
}

/* Index of the row's first element in Q or O. */
static inline int64_t cpu_row_index(const cpu_task_t *task, const flash_strides_t *stride,
                                    cpu_row_t row) {
    return task->batch_index * stride->batch + (task->sequence.q_begin + row.query) * stride->seq +
           row.head * stride->head;
}

/* Index of the first element of a key of some head in K or V. */
static inline int64_t cpu_key_index_of(const cpu_task_t *task, const flash_strides_t *stride,
                                       int64_t key, int64_t head_kv) {
    return task->batch_index * stride->batch + (task->sequence.k_begin + key) * stride->seq +
           head_kv * stride->head;
}

/* The same of the task's head. */
static inline int64_t cpu_key_index(const cpu_task_t *task, const flash_strides_t *stride,
                                    int64_t key) {
    return cpu_key_index_of(task, stride, key, task->head_kv);
}

/* Keys of the task that the row sees; {0, 0} when there are none. */
static inline flash_range_t cpu_row_keys(const flash_params_t *p, const cpu_task_t *task,
                                         cpu_row_t row) {
    flash_range_t keys = flash_visible_keys(p, &task->sequence, row.query);
    if (keys.begin < task->keys.begin)
        keys.begin = task->keys.begin;
    if (keys.end > task->keys.end)
        keys.end = task->keys.end;
    if (keys.end <= keys.begin)
        keys.begin = keys.end = 0;
    return keys;
}

static inline bool cpu_wants_lse(const flash_params_t *p, const cpu_task_t *task) {
    return task->lse_partial != NULL || p->lse != NULL;
}

/* LSE of row number `index` of the task, to where it is wanted. */
static inline void cpu_store_lse(const flash_params_t *p, const cpu_task_t *task, int64_t index,
                                 cpu_row_t row, float lse) {
    if (task->lse_partial)
        task->lse_partial[index] = lse;
    else
        element_store(
            p->lse,
            flash_lse_index(p, &task->sequence, task->batch_index, (int32_t)row.head, row.query),
            FLASH_DTYPE_FP32, lse);
}

#endif
