/*
 * This file copies blocks of keys that page boundaries cut, row by row. Where the rows lie is
 * looked up once per block, for all heads.
 */
#ifndef FLASH_KERNELS_CPU_TILED_COPY_PAGES_H
#define FLASH_KERNELS_CPU_TILED_COPY_PAGES_H

#include "cpu/holes.h"
#include "cpu/tiled/in_place.h"

#include <string.h>

enum { BLOCK_ROWS_MAX = 64 };
_Static_assert((int)IN_PLACE_KEYS <= (int)BLOCK_ROWS_MAX && (int)SINGLE_ROW_KEYS <= BLOCK_ROWS_MAX,
               "rows of a block in place");

enum { ROW_IN_HOLE = -1 }; /* stands for a row of zeros */

/* These are the first elements of a block's rows of K and V, counted from those of head 0. */
typedef struct block_rows {
    flash_range_t keys;
    int64_t k[BLOCK_ROWS_MAX];
    int64_t v[BLOCK_ROWS_MAX];
} block_rows_t;

/* These are the rows of a block and of the next one. Block i has entry i % 2, so that the rows of
 * the next block are not looked up again. */
typedef struct rows_of_blocks {
    block_rows_t entry[2];
} rows_of_blocks_t;

static inline void start_block_rows(rows_of_blocks_t *rows) {
    rows->entry[0].keys = rows->entry[1].keys = (flash_range_t){0, 0};
}

static inline void find_rows(const flash_params_t *p, const cpu_task_t *task, const cpu_kv_t *kv,
                             flash_range_t keys, int64_t *rows) {
    while (keys.begin < keys.end) {
        const flash_range_t page = cpu_first_of_page(p, keys, keys.end - keys.begin);
        const flash_kv_run_t run = cpu_page_run(p, task, kv->table, keys.begin);
        const int64_t first = flash_kv_offset(kv->stride, &run, 0);
        const bool in_hole = cpu_in_hole(p, task, keys.begin);
        for (int32_t i = 0; i < page.end - page.begin; i++)
            *rows++ = in_hole ? ROW_IN_HOLE : first + i * kv->stride->seq;
        keys.begin = page.end;
    }
}

/* Returns the rows of block `index`, which has these keys. */
static inline const block_rows_t *find_block_rows(const flash_params_t *p, const cpu_task_t *task,
                                                  rows_of_blocks_t *rows, int64_t index,
                                                  flash_range_t keys) {
    const cpu_kv_t k = cpu_kv_k(p), v = cpu_kv_v(p);
    block_rows_t *entry = &rows->entry[index % 2];
    if (entry->keys.begin == keys.begin && entry->keys.end == keys.end)
        return entry;
    entry->keys = keys;
    find_rows(p, task, &k, keys, entry->k);
    find_rows(p, task, &v, keys, entry->v);
    return entry;
}

/* These are rows of K or V of a head to copy, and rows to prefetch meanwhile. */
typedef struct copied_rows {
    const void *head; /* the head's first element */
    const int64_t *rows;
    const int64_t *prefetch;
    int32_t n;
    int32_t n_prefetch;
} copied_rows_t;

static inline in_place_t copy_block_rows(const copied_rows_t *from, int32_t dtype, int64_t d,
                                         void *memory) {
    const size_t row_bytes = (size_t)(d * element_size(dtype));
    const in_place_t copy = {
        .data = memory, .prefetch = memory, .stride = d, .n_heads = 1, .adjoin = true};
    char *to = memory;
    for (int32_t i = 0; i < from->n; i++, to += row_bytes) {
        if (i < from->n_prefetch && from->prefetch[i] != ROW_IN_HOLE)
            prefetch_row(element_at(from->head, from->prefetch[i], dtype), (int64_t)row_bytes);
        if (from->rows[i] == ROW_IN_HOLE)
            memset(to, 0, row_bytes);
        else
            memcpy(to, element_at(from->head, from->rows[i], dtype), row_bytes);
    }
    return copy;
}

#endif
