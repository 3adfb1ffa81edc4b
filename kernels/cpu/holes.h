/*
 * This file finds keys in the holes of a page table (FLASH_FLAG_PAGE_HOLES). They count as
 * positions, but nobody sees them, and there is no memory that they lie in: K and V are zeros where
 * they are packed or copied, and scores become -infinity. K's table says it for V too.
 */
#ifndef FLASH_KERNELS_CPU_HOLES_H
#define FLASH_KERNELS_CPU_HOLES_H

#include "cpu/rows.h"

#include <stdbool.h>
#include <stdint.h>

enum { CPU_HOLES_WORDS = 128 }; /* of the largest B_c that a configuration can have */

/* These are the keys of a block that lie in holes: bit i % 32 of word i / 32 is key i. */
typedef struct cpu_holes {
    uint32_t word[CPU_HOLES_WORDS];
    int32_t n; /* such keys */
} cpu_holes_t;

/* Returns where the id of the key's page is in the table. */
static inline int64_t cpu_id_at(const flash_params_t *p, const cpu_task_t *task, int64_t key) {
    return flash_pages_first_id(&p->pages, task->batch_index) + flash_kv_page_of(&p->pages, key);
}

/* Says whether the key lies in a hole. */
static inline bool cpu_in_hole(const flash_params_t *p, const cpu_task_t *task, int64_t key) {
    return p->bias.has_page_holes && flash_load_length(p->pages.table, cpu_id_at(p, task, key)) < 0;
}

static inline void cpu_mark_holes(cpu_holes_t *holes, int64_t begin, int64_t end) {
    holes->n += (int32_t)(end - begin);
    for (int64_t i = begin; i < end; i++)
        holes->word[i / 32] |= 1u << i % 32;
}

/* Finds the keys of a block in holes. There may be some. */
static inline void cpu_find_holes(const flash_params_t *p, const cpu_task_t *task,
                                  flash_range_t keys, cpu_holes_t *holes) {
    const int64_t n = keys.end - keys.begin, size = p->pages.page_size;
    const int64_t page = flash_kv_page_of(&p->pages, keys.begin);
    int64_t at = cpu_id_at(p, task, keys.begin), end = (page + 1) * size - keys.begin;
    holes->n = 0;
    memset(holes->word, 0, (size_t)(n + 31) / 32 * sizeof holes->word[0]);
    for (int64_t begin = 0; begin < n; begin = end, end += size, at++)
        if (flash_load_length(p->pages.table, at) < 0)
            cpu_mark_holes(holes, begin, end < n ? end : n);
}

/* Returns the keys of a block in holes, in `memory`; NULL: there are none. */
static inline const cpu_holes_t *cpu_holes_of(const flash_params_t *p, const cpu_task_t *task,
                                              flash_range_t keys, cpu_holes_t *memory) {
    if (!p->bias.has_page_holes)
        return NULL;
    cpu_find_holes(p, task, keys, memory);
    return memory->n > 0 ? memory : NULL;
}

/* Says whether all of `keys`, a block, lie in these holes. */
static inline bool cpu_holes_hide(const cpu_holes_t *holes, flash_range_t keys) {
    return holes != NULL && holes->n == keys.end - keys.begin;
}

#endif
