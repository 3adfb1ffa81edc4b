/*
 * Elements of 16 bits become fp32, and fp32 is rounded to nearest even to one of them (PTX ISA,
 * "Data Movement and Conversion Instructions: cvt"). CUDA's headers of such types are not used:
 * with them all headers that a file of kernels reads cost half as much again.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_ELEMENT_CUH
#define FLASH_KERNELS_COMMON_PTX_ELEMENT_CUH

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

#endif
