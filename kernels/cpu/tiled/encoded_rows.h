/*
 * This file finds rows of a block of keys of one head, whether they lie in pages or not.
 */
#ifndef FLASH_KERNELS_CPU_TILED_ENCODED_ROWS_H
#define FLASH_KERNELS_CPU_TILED_ENCODED_ROWS_H

#include "cpu/row_cursor.h"
#include "cpu/tiled/arithmetic.h"

/* These are K or V of the task's one head: keys to decode, and those after them to prefetch. */
typedef struct encoded_keys {
    paged_keys_t from;
    int64_t d;
    flash_range_t keys;
    flash_range_t after;
} encoded_keys_t;

/* Rows that lie one stride apart. */
typedef struct encoded_rows {
    const char *first;
    int64_t stride; /* bytes */
    int32_t n;
    bool in_hole; /* they are zeros, and `first` is only there to be prefetched */
} encoded_rows_t;

/* Returns the first keys of a range that lie in one run. */
static inline encoded_rows_t first_rows(const encoded_keys_t *encoded, flash_range_t keys) {
    const paged_keys_t *from = &encoded->from;
    const cpu_kv_t *kv = &from->kv;
    const int64_t stride = kv->stride->seq * element_size(from->dtype);
    const bool paged = cpu_is_paged(from->p);
    const int32_t n = keys.end - keys.begin;
    const flash_range_t first = paged ? cpu_first_of_page(from->p, keys, n) : keys;
    const flash_kv_run_t run = paged ? cpu_page_run(from->p, from->task, kv->table, keys.begin)
                                     : cpu_key_run(from->task, keys.begin);
    const int64_t at = flash_kv_offset(kv->stride, &run, from->task->head_kv);
    const encoded_rows_t rows = {element_at(kv->data, at, from->dtype), stride,
                                 first.end - first.begin,
                                 cpu_in_hole(from->p, from->task, keys.begin)};
    return rows;
}

#endif
