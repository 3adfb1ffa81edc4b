/*
 * See cache.h.
 */
#include "cache.h"
#include "machine.h"

#include <stdlib.h>

/* Puts all pages on the free list in random order, which a cache in use arrives at. */
static void free_all(cache_t *cache) {
    for (int64_t i = 0; i < cache->n_pages; i++) {
        const int64_t other = rand() % (i + 1);
        cache->free[i] = cache->free[other];
        cache->free[other] = (int32_t)i;
    }
    cache->n_free = cache->n_pages;
}

cache_t cache_make(int64_t batch, int64_t longest) {
    cache_t cache = {.batch = batch, .row_ids = (longest + PAGE_SIZE - 1) / PAGE_SIZE};
    cache.n_pages = batch * cache.row_ids;
    cache.table = machine_allocate_host(cache_table_bytes(&cache));
    cache.lengths = machine_allocate_host(cache_lengths_bytes(&cache));
    cache.slots = machine_allocate_host(cache_slots_bytes(&cache));
    cache.free = machine_allocate_host((size_t)cache.n_pages * sizeof *cache.free);
    for (int64_t i = 0; i < batch * cache.row_ids; i++)
        cache.table[i] = -1;
    for (int64_t b = 0; b < batch; b++) {
        cache.lengths[b] = 0;
        cache.slots[b] = -1; /* nowhere */
    }
    free_all(&cache);
    return cache;
}

void cache_free(cache_t *cache) {
    machine_free_host(cache->table);
    machine_free_host(cache->lengths);
    machine_free_host(cache->slots);
    machine_free_host(cache->free);
}

static void add_key(cache_t *cache, int64_t sequence) {
    const int32_t at = cache->lengths[sequence]++;
    int32_t *page = &cache->table[sequence * cache->row_ids + at / PAGE_SIZE];
    if (at % PAGE_SIZE == 0)
        *page = cache->free[--cache->n_free];
    cache->slots[sequence] = (int64_t)*page * PAGE_SIZE + at % PAGE_SIZE;
}

void cache_grow(cache_t *cache, int64_t keys) {
    for (int64_t i = 0; i < keys; i++)
        for (int64_t b = 0; b < cache->batch; b++)
            add_key(cache, b);
}

size_t cache_table_bytes(const cache_t *cache) {
    return (size_t)(cache->batch * cache->row_ids) * sizeof *cache->table;
}

size_t cache_lengths_bytes(const cache_t *cache) {
    return (size_t)cache->batch * sizeof *cache->lengths;
}

size_t cache_slots_bytes(const cache_t *cache) {
    return (size_t)cache->batch * sizeof *cache->slots;
}
