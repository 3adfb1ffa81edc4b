/*
 * Two fp32 values are rounded to nearest even into one register of 16-bit elements (PTX ISA, "Data
 * Movement and Conversion Instructions: cvt", .f16x2, .bf16x2).
 */
#ifndef FLASH_KERNELS_COMMON_PTX_CONVERT_CUH
#define FLASH_KERNELS_COMMON_PTX_CONVERT_CUH

#include "common/ptx/pair_types.cuh"

#include <stdint.h>

/* low becomes bits 0 ... 15, the element that comes first in memory. */
template <int DTYPE> static __device__ uint32_t convert_pair(float low, float high) = delete;

#define CONVERT_PAIR(DTYPE, TYPE)                                                                  \
    template <> __device__ __forceinline__ uint32_t convert_pair<DTYPE>(float low, float high) {   \
        uint32_t pair;                                                                             \
        asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));             \
        return pair;                                                                               \
    }
FLASH_PAIR_TYPES(CONVERT_PAIR)
#undef CONVERT_PAIR

#endif
