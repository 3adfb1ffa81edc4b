/*
 * Arithmetic on two 16-bit floating-point elements in one register.
 * PTX ISA, "Half Precision Floating Point Instructions: fma" (.f16x2, .bf16x2).
 */
#ifndef FLASH_KERNELS_COMMON_PTX_PACKED_MATH_CUH
#define FLASH_KERNELS_COMMON_PTX_PACKED_MATH_CUH

#include "flashattn.h"

#include <stdint.h>

/* a * b + c, of each element. */
template <int DTYPE>
static __device__ __forceinline__ uint32_t multiply_add_pair(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    if constexpr (DTYPE == FLASH_DTYPE_FP16)
        asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else
        asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#endif
