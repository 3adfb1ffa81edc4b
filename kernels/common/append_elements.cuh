/*
 * The append kernels load, convert and store elements, as they lie in memory in words, in two ways:
 * one at a time, of any type, or vectors of eight, of a 16-bit type that is known when the kernel
 * is compiled.
 */
#ifndef FLASH_KERNELS_COMMON_APPEND_ELEMENTS_CUH
#define FLASH_KERNELS_COMMON_APPEND_ELEMENTS_CUH

#include "common/dtype.cuh"
#include "common/ptx/convert.cuh"

#include <cuda_fp8.h>

/* Two elements of e4m3; infinity becomes the largest one. */
static __device__ __forceinline__ uint32_t narrow_to_e4m3(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

/* Two elements of e4m3, from the lower bytes. */
static __device__ __forceinline__ float2 widen_e4m3(uint32_t pair) {
    const __half2_raw half = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)pair, __NV_E4M3);
    return __half22float2(__half2(half));
}

/* ---- One element, of any type ---- */

struct single_element {
    static constexpr int count = 1;
    uint32_t words[1];

    __device__ __forceinline__ void load(const char *from, int size) {
        words[0] = size == 1   ? *reinterpret_cast<const uint8_t *>(from)
                   : size == 2 ? *reinterpret_cast<const uint16_t *>(from)
                               : *reinterpret_cast<const uint32_t *>(from);
    }

    __device__ __forceinline__ void store(char *to, int size) const {
        if (size == 1)
            *reinterpret_cast<uint8_t *>(to) = (uint8_t)words[0];
        else if (size == 2)
            *reinterpret_cast<uint16_t *>(to) = (uint16_t)words[0];
        else
            *reinterpret_cast<uint32_t *>(to) = words[0];
    }

    __device__ __forceinline__ void widen(int dtype, float (&x)[1]) const {
        DTYPES_KNOWN(7);
        if (dtype == FLASH_DTYPE_FP16)
            x[0] = dtype_load<FLASH_DTYPE_FP16>(words, 0);
        else if (dtype == FLASH_DTYPE_BF16)
            x[0] = dtype_load<FLASH_DTYPE_BF16>(words, 0);
        else if (dtype == FLASH_DTYPE_E4M3)
            x[0] = widen_e4m3(words[0]).x;
        else
            x[0] = __uint_as_float(words[0]);
    }

    __device__ __forceinline__ void narrow(int dtype, const float (&x)[1]) {
        DTYPES_KNOWN(7);
        if (dtype == FLASH_DTYPE_FP16)
            words[0] = convert_pair<FLASH_DTYPE_FP16>(x[0], 0.0f);
        else if (dtype == FLASH_DTYPE_BF16)
            words[0] = convert_pair<FLASH_DTYPE_BF16>(x[0], 0.0f);
        else if (dtype == FLASH_DTYPE_FP32)
            words[0] = __float_as_uint(x[0]);
        else
            words[0] = narrow_to_e4m3(x[0], 0.0f);
    }
};

/* ---- Vectors, at addresses that are multiples of their size or of 16 bytes ---- */

static __device__ __forceinline__ void load_four(const char *from, uint32_t *words) {
    const uint4 four = *reinterpret_cast<const uint4 *>(from);
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
}

/* Eight elements. Those that are converted are of DTYPE or e4m3, or of fp32 in tables of cosines
 * and sines, and become elements of DTYPE or of e4m3; others are only copied. */
template <int DTYPE> struct element_vector {
    static constexpr int count = 8;
    uint32_t words[count];

    __device__ __forceinline__ void load(const char *from, int size) {
        if (size == 1) {
            const uint2 two = *reinterpret_cast<const uint2 *>(from);
            words[0] = two.x;
            words[1] = two.y;
            return;
        }
        load_four(from, words);
        if (size == 4)
            load_four(from + 16, words + 4);
    }

    __device__ __forceinline__ void store(char *to, int size) const {
        if (size == 1)
            *reinterpret_cast<uint2 *>(to) = make_uint2(words[0], words[1]);
        else
            *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }

    __device__ __forceinline__ void widen(int dtype, float (&x)[count]) const {
        if (dtype == FLASH_DTYPE_FP32) {
#pragma unroll
            for (int i = 0; i < count; i++)
                x[i] = __uint_as_float(words[i]);
            return;
        }
        if (dtype == FLASH_DTYPE_E4M3) {
#pragma unroll
            for (int i = 0; i < count; i += 2) {
                const float2 pair = widen_e4m3(words[i / 4] >> 8 * (i % 4) & 0xffff);
                x[i] = pair.x;
                x[i + 1] = pair.y;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < count; i++)
            x[i] = dtype_load<DTYPE>(&words[i / 2], i % 2);
    }

    __device__ __forceinline__ void narrow(int dtype, const float (&x)[count]) {
        if (dtype == FLASH_DTYPE_E4M3) {
#pragma unroll
            for (int i = 0; i < count; i += 4)
                words[i / 4] = narrow_to_e4m3(x[i], x[i + 1]) | narrow_to_e4m3(x[i + 2], x[i + 3])
                                                                    << 16;
            return;
        }
#pragma unroll
        for (int i = 0; i < count; i += 2)
            words[i / 2] = convert_pair<DTYPE>(x[i], x[i + 1]);
    }
};

#endif
