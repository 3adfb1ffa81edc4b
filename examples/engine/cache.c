/*
 * See cache.h. Pages are looked for one by one: a pool has some thousands at most here.
 */
#include "cache.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

cache_t cache_make(int32_t n_pages) {
    return (cache_t){
        .pages = allocate((size_t)n_pages, sizeof(page_t)), .n_pages = n_pages, .n_free = n_pages};
}

void cache_free(cache_t *cache) {
    free(cache->pages);
}

int32_t cache_take(cache_t *cache) {
    int32_t best = -1;
    for (int32_t i = 0; i < cache->n_pages; i++)
        if (cache->pages[i].n_users == 0 &&
            (best < 0 || cache->pages[i].left < cache->pages[best].left))
            best = i;
    if (best >= 0) {
        cache->pages[best].n_users = 1;
        cache->pages[best].prefix = NO_PREFIX;
        cache->n_free--;
    }
    return best;
}

void cache_leave(cache_t *cache, int32_t page) {
    if (--cache->pages[page].n_users > 0)
        return;
    cache->pages[page].left = ++cache->clock;
    cache->n_free++;
}

prefix_t cache_fill(cache_t *cache, int32_t page, prefix_t before, const int32_t *tokens) {
    page_t *p = &cache->pages[page];
    p->before = before;
    p->prefix = ++cache->clock;
    memcpy(p->tokens, tokens, sizeof p->tokens);
    return p->prefix;
}

int32_t cache_find(cache_t *cache, prefix_t before, const int32_t *tokens) {
    for (int32_t i = 0; i < cache->n_pages; i++) {
        page_t *p = &cache->pages[i];
        if (p->prefix != NO_PREFIX && p->before == before &&
            memcmp(p->tokens, tokens, sizeof p->tokens) == 0) {
            cache->n_free -= p->n_users == 0;
            p->n_users++;
            return i;
        }
    }
    return -1;
}
