/*
 * This file multiplies a row of numbers, one for each key of a block, by the scales of the keys'
 * pages: scores by K's, and P, which is fp32 where keys are of e4m3, by V's.
 */
#ifndef FLASH_KERNELS_CPU_TILED_PAGE_SCALES_H
#define FLASH_KERNELS_CPU_TILED_PAGE_SCALES_H

#include "cpu/holes.h"
#include "cpu/rows.h"
#include "cpu/tiled/scratch.h"

/* The pages of K or of V, which have scales. */
typedef struct scaled_pages {
    const flash_scale_t *scale;
    const int32_t *table;
} scaled_pages_t;

static inline scaled_pages_t scaled_pages_k(const flash_params_t *p) {
    return (scaled_pages_t){&p->k_scale, p->pages.table};
}

static inline scaled_pages_t scaled_pages_v(const flash_params_t *p) {
    return (scaled_pages_t){&p->v_scale, p->pages.v_table};
}

/* Multiplies the numbers of these keys, of a row of the task's heads; x is that of the first. */
NEVER_INLINE void scale_by_pages(const tile_scratch_t *t, const flash_params_t *p,
                                 const cpu_task_t *task, const scaled_pages_t *pages, int64_t row,
                                 flash_range_t keys, float *x) {
    const int64_t head_kv = task->head_kv + row / t->head_rows;
    while (keys.begin < keys.end) {
        const flash_range_t page = cpu_first_of_page(p, keys, keys.end - keys.begin);
        const float scale =
            cpu_in_hole(p, task, keys.begin)
                ? 1
                : cpu_page_scale(p, task, pages->scale, pages->table, keys.begin, head_kv);
        const int32_t n = page.end - page.begin;
        for (int32_t i = 0; i < n; i++)
            x[i] *= scale;
        x += n;
        keys.begin = page.end;
    }
}

#endif
