/*
 * A row cursor walks over rows of a tensor, to read them or to prefetch them: the rows of a head
 * lie far apart, and the processor does not predict where the next one begins.
 */
#ifndef FLASH_KERNELS_CPU_ROW_CURSOR_H
#define FLASH_KERNELS_CPU_ROW_CURSOR_H

#include "cpu/holes.h"
#include "cpu/prefetch.h"
#include "cpu/rows.h"

typedef struct paged_keys {
    const flash_params_t *p;
    const cpu_task_t *task;
    cpu_kv_t kv;
    int32_t dtype;
} paged_keys_t;

/* The cursor goes through n_heads heads of each token; keys in pages go page by page. */
typedef struct row_cursor {
    const char *row;
    int64_t to_next_head;  /* bytes */
    int64_t to_next_token; /* from the last head to the first one of the next token */
    int64_t row_bytes;
    int64_t n_left;
    int32_t n_heads;
    int32_t head;
    const paged_keys_t *pages; /* NULL: all rows lie in one run */
    int64_t next_page;         /* first key of the page after this one */
    int64_t n_in_page;         /* rows left of this page */
    bool in_hole;              /* this page is a hole of the table */
} row_cursor_t;

static inline row_cursor_t cursor_at_rows(const flash_params_t *p, const cpu_task_t *task,
                                          int32_t dtype, int64_t d, const void *data,
                                          const flash_strides_t *stride) {
    const int64_t size = element_size(dtype);
    const cpu_row_t first = cpu_row(p, task, 0);
    const row_cursor_t cursor = {.row = element_at(data, cpu_row_index(task, stride, first), dtype),
                                 .to_next_head = stride->head * size,
                                 .to_next_token =
                                     (stride->seq - (p->group - 1) * stride->head) * size,
                                 .row_bytes = d * size,
                                 .n_left = task->row_end - task->row_begin,
                                 .n_heads = p->group,
                                 .head = (int32_t)(first.head % p->group)};
    return cursor;
}

static inline row_cursor_t cursor_at_pages(const paged_keys_t *pages, int64_t d,
                                           flash_range_t keys) {
    const int64_t size = element_size(pages->dtype);
    const row_cursor_t cursor = {.to_next_token = pages->kv.stride->seq * size,
                                 .row_bytes = key_bytes(pages->dtype, d),
                                 .n_left = (int64_t)keys.end - keys.begin,
                                 .n_heads = 1,
                                 .pages = pages,
                                 .next_page = keys.begin};
    return cursor;
}

static inline void enter_page(row_cursor_t *cursor) {
    const paged_keys_t *from = cursor->pages;
    const flash_kv_run_t run = cpu_page_run(from->p, from->task, from->kv.table, cursor->next_page);
    const int64_t first = flash_kv_offset(from->kv.stride, &run, from->task->head_kv);
    cursor->row = element_at(from->kv.data, first, from->dtype);
    cursor->n_in_page = flash_kv_left(&run);
    cursor->in_hole = cpu_in_hole(from->p, from->task, cursor->next_page);
    cursor->next_page += cursor->n_in_page;
}

static inline row_cursor_t cursor_at_keys(const cpu_task_t *task, int32_t dtype, int64_t d,
                                          const void *data, const flash_strides_t *stride,
                                          flash_range_t keys) {
    const int64_t size = element_size(dtype);
    const flash_kv_run_t run = cpu_key_run(task, keys.begin);
    const row_cursor_t cursor = {
        .row = element_at(data, flash_kv_offset(stride, &run, task->head_kv), dtype),
        .to_next_token = stride->seq * size,
        .row_bytes = key_bytes(dtype, d),
        .n_left = (int64_t)keys.end - keys.begin,
        .n_heads = 1};
    return cursor;
}

/* Returns the next row; NULL: there are no more, or it lies in a hole, and is zeros. */
ALWAYS_INLINE const char *cursor_next(row_cursor_t *cursor) {
    if (cursor->n_left <= 0)
        return NULL;
    if (cursor->pages && cursor->n_in_page-- == 0) {
        enter_page(cursor);
        cursor->n_in_page--;
    }
    cursor->n_left--;
    if (cursor->in_hole)
        return NULL;
    const char *row = cursor->row;
    if (++cursor->head < cursor->n_heads) {
        cursor->row += cursor->to_next_head;
    } else {
        cursor->head = 0;
        cursor->row += cursor->to_next_token;
    }
    return row;
}

ALWAYS_INLINE void prefetch_next(row_cursor_t *cursor) {
    const char *row = cursor_next(cursor);
    if (row)
        prefetch_row(row, cursor->row_bytes);
}

ALWAYS_INLINE void prefetch_next_near(row_cursor_t *cursor) {
    const char *row = cursor_next(cursor);
    if (row)
        prefetch_row_near(row, cursor->row_bytes);
}

#endif
