/*
 * The append kernels load, convert and store N elements of a type that is known at run time.
 */
#ifndef FLASH_KERNELS_COMMON_APPEND_ELEMENTS_CUH
#define FLASH_KERNELS_COMMON_APPEND_ELEMENTS_CUH

#include "common/dtype.cuh"

#include <cuda_fp8.h>

/* Copies BYTES bytes, a power of two; addresses are multiples of it, or of 16 if it is larger. */
template <int BYTES> static __device__ __forceinline__ void copy_bytes(const void *from, void *to) {
    if constexpr (BYTES == 32) {
        const uint4 *source = static_cast<const uint4 *>(from);
        const uint4 low = source[0], high = source[1];
        static_cast<uint4 *>(to)[0] = low;
        static_cast<uint4 *>(to)[1] = high;
    } else if constexpr (BYTES == 16) {
        *static_cast<uint4 *>(to) = *static_cast<const uint4 *>(from);
    } else if constexpr (BYTES == 8) {
        *static_cast<uint2 *>(to) = *static_cast<const uint2 *>(from);
    } else if constexpr (BYTES == 4) {
        *static_cast<uint32_t *>(to) = *static_cast<const uint32_t *>(from);
    } else if constexpr (BYTES == 2) {
        *static_cast<uint16_t *>(to) = *static_cast<const uint16_t *>(from);
    } else {
        static_assert(BYTES == 1, "no such number of bytes");
        *static_cast<uint8_t *>(to) = *static_cast<const uint8_t *>(from);
    }
}

/* N elements of `size` bytes as they are. */
template <int N> struct raw_elements { alignas(16) unsigned char bytes[4 * N]; };

template <int N>
static __device__ __forceinline__ void load_raw(const void *data, int64_t at, int size,
                                                raw_elements<N> &raw) {
    const char *from = static_cast<const char *>(data) + at * size;
    if (size == 2)
        copy_bytes<2 * N>(from, raw.bytes);
    else if (size == 4)
        copy_bytes<4 * N>(from, raw.bytes);
    else
        copy_bytes<N>(from, raw.bytes);
}

template <int N>
static __device__ __forceinline__ void store_raw(void *data, int64_t at, int size,
                                                 const raw_elements<N> &raw) {
    char *to = static_cast<char *>(data) + at * size;
    if (size == 2)
        copy_bytes<2 * N>(raw.bytes, to);
    else if (size == 4)
        copy_bytes<4 * N>(raw.bytes, to);
    else
        copy_bytes<N>(raw.bytes, to);
}

template <int DTYPE, int N>
static __device__ __forceinline__ void widen_as(const raw_elements<N> &raw, float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = dtype_load<DTYPE>(raw.bytes, i);
}

/* Elements of e4m3 are only copied. */
template <int N>
static __device__ __forceinline__ void widen(const raw_elements<N> &raw, int dtype, float (&x)[N]) {
    DTYPES_KNOWN(4);
    if (dtype == FLASH_DTYPE_FP16)
        widen_as<FLASH_DTYPE_FP16>(raw, x);
    else if (dtype == FLASH_DTYPE_BF16)
        widen_as<FLASH_DTYPE_BF16>(raw, x);
    else
        widen_as<FLASH_DTYPE_FP32>(raw, x);
}

template <int DTYPE, int N>
static __device__ __forceinline__ void narrow_as(const float (&x)[N], raw_elements<N> &raw) {
#pragma unroll
    for (int i = 0; i < N; i++)
        dtype_store<DTYPE>(raw.bytes, i, x[i]);
}

template <int N>
static __device__ __forceinline__ void narrow_to_e4m3(const float (&x)[N], raw_elements<N> &raw) {
    if constexpr (N == 1) {
        raw.bytes[0] = __nv_cvt_float_to_fp8(x[0], __NV_SATFINITE, __NV_E4M3);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2)
            *reinterpret_cast<uint16_t *>(raw.bytes + i) =
                __nv_cvt_float2_to_fp8x2(make_float2(x[i], x[i + 1]), __NV_SATFINITE, __NV_E4M3);
    }
}

template <int N>
static __device__ __forceinline__ void narrow(const float (&x)[N], int dtype,
                                              raw_elements<N> &raw) {
    DTYPES_KNOWN(4);
    if (dtype == FLASH_DTYPE_FP16)
        narrow_as<FLASH_DTYPE_FP16>(x, raw);
    else if (dtype == FLASH_DTYPE_BF16)
        narrow_as<FLASH_DTYPE_BF16>(x, raw);
    else if (dtype == FLASH_DTYPE_FP32)
        narrow_as<FLASH_DTYPE_FP32>(x, raw);
    else
        narrow_to_e4m3(x, raw);
}

#endif
