/*
 * This file hands items to workers.
 */
#include "cpu/items.h"

#include "core/int64.h"

#include <stdatomic.h>

typedef struct shared_items {
    const cpu_items_t *items;
    atomic_int_least64_t next;
} shared_items_t;

static void take_items(void *argument, int32_t worker) {
    shared_items_t *shared = argument;
    const cpu_items_t *items = shared->items;
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (i >= items->n)
            return;
        items->work(items->context, i, worker);
    }
}

void cpu_items_run(parallel_t *parallel, int32_t n_workers, const cpu_items_t *items) {
    shared_items_t shared = {.items = items};
    const int64_t n = min64(n_workers, items->n);
    if (n > 0)
        parallel_for(parallel, (int32_t)n, take_items, &shared);
}
