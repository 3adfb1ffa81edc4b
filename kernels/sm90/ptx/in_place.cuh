/*
 * These change a register where a condition holds. A select leaves its result in another register,
 * and a tile of scores that passes through selects on several ways takes registers twice. PTX ISA,
 * "Data Movement and Conversion Instructions: mov"; "Comparison and Selection Instructions: setp";
 * "Half Precision Comparison Instructions: setp" (.f16x2, .bf16x2).
 */
#ifndef FLASH_KERNELS_SM90_PTX_IN_PLACE_CUH
#define FLASH_KERNELS_SM90_PTX_IN_PLACE_CUH

#include "common/dtype.h"
#include "common/ptx/pair_types.cuh"

#include <stdint.h>

/* Makes a score -infinity if the number is. */
static __device__ __forceinline__ void hide_if_minus_infinity(float &score, float number) {
    asm volatile("{\n"
                 ".reg .pred hidden;\n"
                 "setp.eq.f32 hidden, %1, 0fff800000;\n"
                 "@hidden mov.f32 %0, 0fff800000;\n"
                 "}\n"
                 : "+f"(score)
                 : "f"(number));
}

/* Does the same for two scores, by a pair of numbers of 16 bits. */
template <int DTYPE>
static __device__ void hide_if_minus_infinity(float &low, float &high, uint32_t pair) = delete;

#define HIDE_IF_MINUS_INFINITY(DTYPE, TYPE)                                                        \
    template <>                                                                                    \
    __device__ __forceinline__ void hide_if_minus_infinity<DTYPE>(float &low, float &high,         \
                                                                  uint32_t pair) {                 \
        constexpr uint32_t infinity = 0x8000u | dtype_exponent_bits(DTYPE);                        \
        asm volatile("{\n"                                                                         \
                     ".reg .pred hides_low, hides_high;\n"                                         \
                     "setp.eq." TYPE "x2 hides_low|hides_high, %2, %3;\n"                          \
                     "@hides_low mov.f32 %0, 0fff800000;\n"                                        \
                     "@hides_high mov.f32 %1, 0fff800000;\n"                                       \
                     "}\n"                                                                         \
                     : "+f"(low), "+f"(high)                                                       \
                     : "r"(pair), "r"(infinity << 16 | infinity));                                 \
    }
FLASH_PAIR_TYPES(HIDE_IF_MINUS_INFINITY)
#undef HIDE_IF_MINUS_INFINITY

#endif
