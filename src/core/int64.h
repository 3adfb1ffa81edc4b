/*
 * Arithmetic of counts and sizes.
 */
#ifndef FLASH_INT64_H
#define FLASH_INT64_H

#include <stdint.h>

/* a / b, rounded up, of numbers that are not negative. */
static inline int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
