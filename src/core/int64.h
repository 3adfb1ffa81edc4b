/*
 * These functions compute with counts and sizes.
 */
#ifndef FLASH_INT64_H
#define FLASH_INT64_H

#include <stdint.h>

/* Returns a / b, rounded up, for numbers that are not negative. */
static inline int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* These return a * b and a + b, or UINT64_MAX where that overflows. */
static inline uint64_t saturating_multiply(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static inline uint64_t saturating_add(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

#endif
