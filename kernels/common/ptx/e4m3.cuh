/*
 * Elements of e4m3, four to a register, become pairs of fp16, which holds each exactly. Compute
 * capability 8.9 and newer convert them (PTX ISA, "Data Movement and Conversion Instructions: cvt",
 * .e4m3x2); on older devices their bits are moved.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_E4M3_CUH
#define FLASH_KERNELS_COMMON_PTX_E4M3_CUH

#include "common/ptx/packed_math.cuh"

#include <stdint.h>

/* low: elements 0 and 1 of a register; high: elements 2 and 3. */
typedef struct e4m3_pairs {
    uint32_t low;
    uint32_t high;
} e4m3_pairs_t;

#if __CUDA_ARCH__ >= 890

static __device__ __forceinline__ e4m3_pairs_t fp16_from_e4m3(uint32_t four) {
    e4m3_pairs_t pairs;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
        : "=r"(pairs.low), "=r"(pairs.high)
        : "r"(four));
    return pairs;
}

#else

/* two: an element in the upper half of each 16 bits, with zeros below. The exponent's bias is 7 in
 * e4m3 and 15 in fp16, so the moved bits stand for 2^-8 of the element. */
static __device__ __forceinline__ uint32_t fp16_from_spread_e4m3(uint32_t two) {
    constexpr uint32_t two_to_8 = 0x5c005c00u, nan = 0x7f007f00u;
    const uint32_t magnitude = two & nan;
    const uint32_t shifted = (two & 0x80008000u) | magnitude >> 1;
    const uint32_t exact = multiply_add_pair<FLASH_DTYPE_FP16>(shifted, two_to_8, 0x80008000u);
    return exact | __vcmpeq2(magnitude, nan);
}

static __device__ __forceinline__ e4m3_pairs_t fp16_from_e4m3(uint32_t four) {
    return {fp16_from_spread_e4m3(__byte_perm(four, 0, 0x1404)),
            fp16_from_spread_e4m3(__byte_perm(four, 0, 0x3424))};
}

#endif

#endif
