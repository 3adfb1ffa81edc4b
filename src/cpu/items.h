/*
 * Workers of a call on the CPU take items of work, one after the other.
 */
#ifndef FLASH_CPU_ITEMS_H
#define FLASH_CPU_ITEMS_H

#include "cpu/thread_pool.h"

#include <stdint.h>

typedef struct cpu_items {
    int64_t n;
    void (*work)(void *context, int64_t item, int32_t worker);
    void *context;
} cpu_items_t;

/* Calls work() once for each item 0 ... n - 1, on at most n_workers threads, and returns when all
 * are done. Items begin in their order. */
void cpu_items_run(parallel_t *parallel, int32_t n_workers, const cpu_items_t *items);

#endif
