/*
 * The host keeps the lengths of sequences here, and knows which page is whose and which are free.
 * Where K and V lie is no business of this file.
 */
#ifndef CACHE_H
#define CACHE_H

#include <stddef.h>
#include <stdint.h>

enum { PAGE_SIZE = 16 };

/* A page table with a row per sequence. The arrays are in memory that the device can copy from. */
typedef struct cache {
    int64_t batch;
    int64_t row_ids;  /* ids that a row holds */
    int64_t n_pages;  /* of the pool */
    int32_t *table;   /* [batch, row_ids] */
    int32_t *lengths; /* [batch] */
    int64_t *slots;   /* [batch]: where the last key of each sequence goes */
    int32_t *free;    /* pages that no sequence has */
    int64_t n_free;
} cache_t;

/* Makes a cache of sequences without a key, with room for `longest` keys of each. */
cache_t cache_make(int64_t batch, int64_t longest);
void cache_free(cache_t *cache);

/* Gives each sequence `keys` more keys, and pages for them wherever one is free. */
void cache_grow(cache_t *cache, int64_t keys);

/* Return the bytes of the table, of the lengths and of the slots. */
size_t cache_table_bytes(const cache_t *cache);
size_t cache_lengths_bytes(const cache_t *cache);
size_t cache_slots_bytes(const cache_t *cache);

#endif
