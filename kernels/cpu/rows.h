/*
 * This file finds where the packed rows of a task (cpu_kernel.h) and its keys lie in the tensors,
 * and which keys each row sees.
 */
#ifndef FLASH_KERNELS_CPU_ROWS_H
#define FLASH_KERNELS_CPU_ROWS_H

#include "common/kv.h"
#include "common/scale.h"
#include "common/sequence.h"
#include "common/sink.h"
#include "cpu/convert.h"
#include "cpu/cpu_kernel.h"

typedef struct cpu_row {
    int64_t query; /* within the sequence */
    int64_t head;
} cpu_row_t;

/* Returns a row of the task, counted from task->row_begin. */
static inline cpu_row_t cpu_row(const flash_params_t *p, const cpu_task_t *task, int64_t row) {
    const int64_t packed = task->row_begin + row;
    const cpu_row_t r = {packed / p->group, (int64_t)task->head_kv * p->group + packed % p->group};
    return r;
}

/* Returns the row after one, as cpu_row() would, without a division. */
static inline cpu_row_t cpu_next_row(const flash_params_t *p, const cpu_task_t *task,
                                     cpu_row_t row) {
    const int64_t first = (int64_t)task->head_kv * p->group;
    if (++row.head == first + p->group) {
        row.head = first;
        row.query++;
    }
    return row;
}

/* Returns the index of the row's first element in Q or O. */
static inline int64_t cpu_row_index(const cpu_task_t *task, const flash_strides_t *stride,
                                    cpu_row_t row) {
    return task->batch_index * stride->batch + (task->sequence.q_begin + row.query) * stride->seq +
           row.head * stride->head;
}

/* Returns the scale of a row of Q of e4m3. */
static inline float cpu_q_scale(const flash_params_t *p, const cpu_task_t *task, cpu_row_t row) {
    return flash_q_scale_at(p, task->batch_index, task->sequence.q_begin + row.query, row.head);
}

/* ---- Keys ---- */

typedef struct cpu_kv {
    const void *data;
    const flash_strides_t *stride;
    const int32_t *table; /* page table; NULL: not paged */
} cpu_kv_t;

static inline cpu_kv_t cpu_kv_k(const flash_params_t *p) {
    const cpu_kv_t k = {p->k, &p->k_stride, p->pages.table};
    return k;
}

static inline cpu_kv_t cpu_kv_v(const flash_params_t *p) {
    const cpu_kv_t v = {p->v, &p->v_stride, p->pages.v_table};
    return v;
}

static inline bool cpu_is_paged(const flash_params_t *p) {
    return p->pages.page_size > 0;
}

/* Returns the run that holds the key. Keys are not in pages. */
static inline flash_kv_run_t cpu_key_run(const cpu_task_t *task, int64_t key) {
    return flash_kv_run(&task->sequence, task->batch_index, key);
}

/* Returns the run, a page, that holds the key. Another thread may change an id after it was
 * checked: what is no page then is read as page 0, and the compiler must not read the id again. */
static inline flash_kv_run_t cpu_page_run(const flash_params_t *p, const cpu_task_t *task,
                                          const int32_t *table, int64_t key) {
    const int64_t first_id = flash_pages_first_id(&p->pages, task->batch_index);
    flash_kv_run_t run = flash_kv_paged_run(&p->pages, table, &task->sequence, first_id, key);
    __asm__("" : "+r"(run.entry));
    if (run.entry < 0 || run.entry >= p->pages.n_pages)
        run.entry = 0;
    return run;
}

/* Returns the scale of K or V of e4m3 for the task's head; 1 where each page has its own. */
static inline float cpu_head_scale(const flash_scale_t *scale, const cpu_task_t *task) {
    return flash_has_page_scales(scale) ? 1
                                        : flash_scale_at(scale, task->batch_index, task->head_kv);
}

/* Returns the scale of a key's page; 1 where pages have none. */
static inline float cpu_page_scale(const flash_params_t *p, const cpu_task_t *task,
                                   const flash_scale_t *scale, const int32_t *table, int64_t key,
                                   int64_t head_kv) {
    return flash_has_page_scales(scale)
               ? flash_page_scale_at(scale, cpu_page_run(p, task, table, key).entry, head_kv)
               : 1;
}

/* Returns the index of a key's first element in K or V. */
static inline int64_t cpu_key_index(const flash_params_t *p, const cpu_task_t *task,
                                    const cpu_kv_t *kv, int64_t key) {
    const flash_kv_run_t run =
        cpu_is_paged(p) ? cpu_page_run(p, task, kv->table, key) : cpu_key_run(task, key);
    return flash_kv_offset(kv->stride, &run, task->head_kv);
}

/* Returns the first keys of a range, at most `most`. */
static inline flash_range_t cpu_first_keys(flash_range_t keys, int32_t most) {
    const int32_t left = keys.end - keys.begin;
    const flash_range_t first = {keys.begin, keys.begin + (left < most ? left : most)};
    return first;
}

/* Returns the first keys of a range that lie in one page, at most `most`. */
static inline flash_range_t cpu_first_of_page(const flash_params_t *p, flash_range_t keys,
                                              int32_t most) {
    const int64_t page = flash_kv_page_of(&p->pages, keys.begin);
    const int64_t in_page = (page + 1) * p->pages.page_size - keys.begin;
    return cpu_first_keys(keys, in_page < most ? (int32_t)in_page : most);
}

static inline bool cpu_in_one_page(const flash_params_t *p, flash_range_t keys) {
    return cpu_first_of_page(p, keys, keys.end - keys.begin).end == keys.end;
}

/* ---- What rows see, their sinks and their LSE ---- */

/* Returns the keys of the task that the row sees; {0, 0} when there are none. */
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

/* Returns the sink of a row of the task. Partial results have none: it joins where they merge. */
static inline float cpu_row_sink(const flash_params_t *p, const cpu_task_t *task, cpu_row_t row) {
    return task->o_partial ? -INFINITY : flash_sink_at(p->sinks, row.head);
}

static inline bool cpu_wants_lse(const flash_params_t *p, const cpu_task_t *task) {
    return task->lse_partial != NULL || p->lse != NULL;
}

/* Stores the LSE of row `index` of the task, as a partial result or in the caller's tensor. */
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
