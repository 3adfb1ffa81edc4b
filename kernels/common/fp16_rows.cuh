/*
 * Rows of bf16 become rows of fp16. The exponents may not fit, so each row is multiplied by a power
 * of two that puts its largest element just below the end of fp16. Elements down to 2^-28 of it
 * keep all bits.
 */
#ifndef FLASH_KERNELS_COMMON_FP16_ROWS_CUH
#define FLASH_KERNELS_COMMON_FP16_ROWS_CUH

#include "common/ptx/convert.cuh"

#include <stdint.h>

/* Returns the larger magnitude of each of two pairs of bf16. Magnitudes are ordered like their
 * bits, and the signs of a are already cleared. */
static __device__ __forceinline__ uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
    return __vmaxu2(a, b & 0x7fff7fffu);
}

/* Does the same for the four pairs of a chunk. */
static __device__ __forceinline__ uint32_t larger_magnitudes(uint32_t a, uint4 b) {
    return larger_magnitudes(
        larger_magnitudes(larger_magnitudes(larger_magnitudes(a, b.x), b.y), b.z), b.w);
}

static __device__ __forceinline__ uint32_t larger_of_pair(uint32_t magnitudes) {
    return max(magnitudes & 0xffffu, magnitudes >> 16);
}

/* Returns 2^exponent; the exponent is one of fp32. */
static __device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

/* Returns the exponent of the power of two for a row whose largest magnitude has these bits of
 * bf16. It is from -114 to 114, so that the power and its inverse are within fp32. */
static __device__ __forceinline__ int fp16_exponent_of_row(uint32_t largest) {
    constexpr int largest_exponent = 14, least = -100;
    return largest_exponent - max((int)(largest >> 7) - 127, least);
}

/* Returns a pair of bf16, multiplied by a factor, as fp16. */
static __device__ __forceinline__ uint32_t fp16_from_scaled_bf16(uint32_t pair, float factor) {
    return convert_pair<FLASH_DTYPE_FP16>(__uint_as_float(pair << 16) * factor,
                                          __uint_as_float(pair & 0xffff0000u) * factor);
}

static __device__ __forceinline__ uint4 fp16_from_scaled_bf16(uint4 chunk, float factor) {
    return {fp16_from_scaled_bf16(chunk.x, factor), fp16_from_scaled_bf16(chunk.y, factor),
            fp16_from_scaled_bf16(chunk.z, factor), fp16_from_scaled_bf16(chunk.w, factor)};
}

#endif
