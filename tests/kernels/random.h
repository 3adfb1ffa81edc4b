/*
 * Random numbers that a seed repeats (xorshift64*, Vigna 2016).
 */
#ifndef FLASH_TESTS_KERNELS_RANDOM_H
#define FLASH_TESTS_KERNELS_RANDOM_H

#include <stdint.h>
#include <string.h>

typedef struct random {
    uint64_t state; /* not 0 */
} random_t;

/* Returns the numbers of one draw of the candidate with this name. */
static inline random_t random_of(uint64_t seed, const char *name, int64_t draw) {
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    hash = (hash ^ seed) * 0x9e3779b97f4a7c15 + (uint64_t)draw * 0xbf58476d1ce4e5b9;
    return (random_t){hash != 0 ? hash : 1};
}

static inline uint64_t random_next(random_t *r) {
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return r->state * 0x2545f4914f6cdd1d;
}

/* Returns one of 0 ... n - 1. */
static inline int64_t random_below(random_t *r, int64_t n) {
    return (int64_t)((random_next(r) >> 33) % (uint64_t)n);
}

/* Returns one of low ... high. */
static inline int64_t random_between(random_t *r, int64_t low, int64_t high) {
    return low + random_below(r, high - low + 1);
}

/* Returns a number in [low, high). */
static inline float random_in(random_t *r, float low, float high) {
    return low + (high - low) * (float)(random_next(r) >> 40) * 0x1p-24f;
}

/* Returns any fp32 at all, by its bits. */
static inline float random_bits(random_t *r) {
    const uint32_t bits = (uint32_t)(random_next(r) >> 32);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
