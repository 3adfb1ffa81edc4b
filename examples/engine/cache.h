/*
 * The pages of the K/V cache: who uses each, and which tokens it has. Where K and V lie is no
 * business of this file.
 *
 * A page that is full keeps its tokens, also after its last user has left, until somebody else
 * needs it. A sequence that begins with the same tokens uses it, too: it computes them no more.
 */
#ifndef CACHE_H
#define CACHE_H

#include <stdint.h>

enum { PAGE_SIZE = 16 };

/* The tokens up to the end of a full page have a number, which never comes again. */
typedef uint64_t prefix_t;
enum { NO_PREFIX = 0 };

typedef struct page {
    int32_t n_users;
    int32_t tokens[PAGE_SIZE];
    prefix_t before; /* of the page's first token */
    prefix_t prefix; /* NO_PREFIX: the page is not full */
    uint64_t left;   /* when its last user did */
} page_t;

typedef struct cache {
    page_t *pages;
    int32_t n_pages, n_free; /* n_free: without a user */
    uint64_t clock;
} cache_t;

cache_t cache_make(int32_t n_pages);
void cache_free(cache_t *cache);

/* Returns a page for new tokens, the one that is without a user for the longest time; -1: each has
 * one. */
int32_t cache_take(cache_t *cache);
void cache_leave(cache_t *cache, int32_t page);

/* Says that a page is full: it has these tokens, behind those of the prefix. */
prefix_t cache_fill(cache_t *cache, int32_t page, prefix_t before, const int32_t *tokens);

/* Returns a full page of these tokens, behind those of the prefix, to be used by one more; -1:
 * there is none. */
int32_t cache_find(cache_t *cache, prefix_t before, const int32_t *tokens);

#endif
