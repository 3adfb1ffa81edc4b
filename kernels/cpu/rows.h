/*
 * Where the packed rows of a task (see cpu_kernel.h) and its keys lie in the tensors, and which
 * keys the rows see.
 */
#ifndef FLASH_KERNELS_CPU_ROWS_H
#define FLASH_KERNELS_CPU_ROWS_H

#include "common/kv.h"
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

/* The run that the key is in. */
static inline flash_kv_run_t cpu_key_run(const cpu_task_t *task, int64_t key) {
    return flash_kv_run(&task->sequence, task->batch_index, key);
}

/* The first keys of a range, those that lie in one run, at most `most`. */
static inline flash_range_t cpu_first_keys(const cpu_task_t *task, flash_range_t keys,
                                           int32_t most) {
    const flash_kv_run_t run = cpu_key_run(task, keys.begin);
    const int32_t in_run = (int32_t)flash_kv_left(&run), left = keys.end - keys.begin;
    const int32_t n = left < most ? left : most;
    const flash_range_t first = {keys.begin, keys.begin + (in_run < n ? in_run : n)};
    return first;
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
