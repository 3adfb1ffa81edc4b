/*
 * Two fp32 values are rounded to nearest even into elements of e4m3, those beyond 448 to it (PTX
 * ISA, "Data Movement and Conversion Instructions: cvt", .e4m3x2, .satfinite). Devices before
 * compute capability 8.9 lack the instruction; there the bits are computed.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_E4M3_PAIR_CUH
#define FLASH_KERNELS_COMMON_PTX_E4M3_PAIR_CUH

#include "common/e4m3.h"

/* low becomes bits 0 ... 7, the element that comes first in memory. NaN becomes 0x7f. */
static __device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return e4m3_from_fp32(low) | (uint32_t)e4m3_from_fp32(high) << 8;
#endif
}

#endif
