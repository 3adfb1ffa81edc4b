/*
 * This is arithmetic on two 16-bit floating-point elements in one register. PTX ISA, "Half
 * Precision Floating Point Instructions: fma", "max" (.f16x2, .bf16x2).
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

/* Returns the larger of a and b, of each element; NaN if one is NaN. */
template <int DTYPE> static __device__ uint32_t max_nan_pair(uint32_t a, uint32_t b) = delete;

#define MAX_NAN_PAIR(DTYPE, TYPE)                                                                  \
    template <> __device__ __forceinline__ uint32_t max_nan_pair<DTYPE>(uint32_t a, uint32_t b) {  \
        uint32_t c;                                                                                \
        asm("max.NaN." TYPE "x2 %0, %1, %2;\n" : "=r"(c) : "r"(a), "r"(b));                        \
        return c;                                                                                  \
    }
FLASH_PAIR_TYPES(MAX_NAN_PAIR)
#undef MAX_NAN_PAIR

#endif
