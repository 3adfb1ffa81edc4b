/*
 * Kernels divide by a number that the host knows, by a multiplication and a shift. Granlund and
 * Montgomery, "Division by Invariant Integers using Multiplication", 1994.
 */
#ifndef FLASH_KERNELS_COMMON_DIVIDE_H
#define FLASH_KERNELS_COMMON_DIVIDE_H

#include "common/host_device.h"

#include <stdint.h>

typedef struct flash_divider {
    uint32_t multiplier;
    uint32_t shift;
} flash_divider_t;

/* Returns the divider by d, 1 ... 2^31 - 1. */
static inline flash_divider_t flash_divider(int32_t d) {
    const uint32_t shift = d > 1 ? 32 - (uint32_t)__builtin_clz((unsigned)d - 1) : 0;
    const uint64_t excess = ((uint64_t)1 << shift) - (uint64_t)d;
    const flash_divider_t divider = {(uint32_t)((excess << 32) / (uint64_t)d + 1), shift};
    return divider;
}

/* Returns the upper half of a product. */
FLASH_HOST_DEVICE static inline uint32_t flash_multiply_high(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    return __umulhi(a, b);
#else
    return (uint32_t)(((uint64_t)a * b) >> 32);
#endif
}

/* Returns n / d for a divider by d; n is not negative. */
FLASH_HOST_DEVICE static inline int32_t flash_divide(int32_t n, flash_divider_t by) {
    const uint32_t x = (uint32_t)n;
    return (int32_t)((flash_multiply_high(x, by.multiplier) + x) >> by.shift);
}

#endif
