/*
 * Elements of 16 bits become fp32, and fp32 is rounded to nearest even to them, one by one or two to
 * a register (PTX ISA, "Data Movement and Conversion Instructions: cvt"). The types of cuda_fp16.h
 * and cuda_bf16.h are not used: to read these two takes a third of what every file of kernels costs
 * beside its kernels.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_CONVERT_CUH
#define FLASH_KERNELS_COMMON_PTX_CONVERT_CUH

#include "common/ptx/pair_types.cuh"

#include <stdint.h>

/* These are elements in memory. */
typedef struct fp16 {
    uint16_t bits;
} fp16_t;

typedef struct bf16 {
    uint16_t bits;
} bf16_t;

static __device__ __forceinline__ float fp32_from(fp16_t x) {
    float y;
    asm("{ cvt.f32.f16 %0, %1;}\n" : "=f"(y) : "h"(x.bits));
    return y;
}

static __device__ __forceinline__ float fp32_from(bf16_t x) {
    float y;
#if __CUDA_ARCH__ >= 900
    asm("{ cvt.f32.bf16 %0, %1;}\n" : "=f"(y) : "h"(x.bits));
#else
    asm("{ mov.b32 %0, {0,%1};}\n" : "=f"(y) : "h"(x.bits));
#endif
    return y;
}

static __device__ __forceinline__ fp16_t fp16_from(float x) {
    fp16_t y;
    asm("{ cvt.rn.f16.f32 %0, %1;}\n" : "=h"(y.bits) : "f"(x));
    return y;
}

static __device__ __forceinline__ bf16_t bf16_from(float x) {
    bf16_t y;
    asm("{ cvt.rn.bf16.f32 %0, %1;}\n" : "=h"(y.bits) : "f"(x));
    return y;
}

/* Returns both elements of a register; x is that of bits 0 ... 15. */
static __device__ __forceinline__ float2 fp32_from_fp16_pair(uint32_t pair) {
    float2 both;
    asm("{.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;}\n"
        : "=f"(both.x)
        : "r"(pair));
    asm("{.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;}\n"
        : "=f"(both.y)
        : "r"(pair));
    return both;
}

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
