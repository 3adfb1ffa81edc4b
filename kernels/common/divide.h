/*
 * The device divides by a number that the host knows, by a multiplication and a shift. Granlund and
 * Montgomery, "Division by Invariant Integers using Multiplication", 1994.
 */
#ifndef FLASH_KERNELS_COMMON_DIVIDE_H
#define FLASH_KERNELS_COMMON_DIVIDE_H

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

#ifdef __CUDACC__
/* Returns n / d for a divider by d; n is not negative. */
static __device__ __forceinline__ int32_t flash_divide(int32_t n, flash_divider_t by) {
    const uint32_t x = (uint32_t)n;
    return (int32_t)((__umulhi(x, by.multiplier) + x) >> by.shift);
}
#endif

#endif
