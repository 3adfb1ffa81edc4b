/*
 * Constants and integer arithmetic of the tiled kernels.
 */
#ifndef FLASH_KERNELS_CPU_TILED_ARITHMETIC_H
#define FLASH_KERNELS_CPU_TILED_ARITHMETIC_H

#include <stdint.h>

static const float LOG2_E = 1.44269504088896340736f;
static const float LN_2 = 0.69314718055994530942f;

static inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static inline int32_t min32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static inline int32_t max32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

#endif
