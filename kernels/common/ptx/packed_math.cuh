/*
 * This is arithmetic on two 16-bit floating-point elements in one register. PTX ISA, "Half
 * Precision Floating Point Instructions: fma" (.f16x2, .bf16x2).
 */
#ifndef FLASH_KERNELS_COMMON_PTX_PACKED_MATH_CUH
#define FLASH_KERNELS_COMMON_PTX_PACKED_MATH_CUH

#include "common/ptx/pair_types.cuh"

#include <stdint.h>

/* Returns a * b + c, of each element. */
template <int DTYPE>
static __device__ uint32_t multiply_add_pair(uint32_t a, uint32_t b, uint32_t c) = delete;

#define MULTIPLY_ADD_PAIR(DTYPE, TYPE)                                                             \
    template <>                                                                                    \
    __device__ __forceinline__ uint32_t multiply_add_pair<DTYPE>(uint32_t a, uint32_t b,           \
                                                                 uint32_t c) {                     \
        uint32_t d;                                                                                \
        asm("fma.rn." TYPE "x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));             \
        return d;                                                                                  \
    }
FLASH_PAIR_TYPES(MULTIPLY_ADD_PAIR)
#undef MULTIPLY_ADD_PAIR

#endif
