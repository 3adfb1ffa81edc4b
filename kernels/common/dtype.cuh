/*
 * Device code has here the C++ type of an element, and conversions from and to fp32.
 */
#ifndef FLASH_KERNELS_COMMON_DTYPE_CUH
#define FLASH_KERNELS_COMMON_DTYPE_CUH

#include "common/dtype.h"
#include "common/ptx/element.cuh"

#include <stdint.h>

template <int DTYPE> struct dtype_traits;

template <> struct dtype_traits<FLASH_DTYPE_FP16> {
    typedef fp16_t element;
    static __device__ __forceinline__ float to_fp32(element x) {
        return fp32_from(x);
    }
    static __device__ __forceinline__ element from_fp32(float x) {
        return fp16_from(x);
    }
};

template <> struct dtype_traits<FLASH_DTYPE_BF16> {
    typedef bf16_t element;
    static __device__ __forceinline__ float to_fp32(element x) {
        return fp32_from(x);
    }
    static __device__ __forceinline__ element from_fp32(float x) {
        return bf16_from(x);
    }
};

template <> struct dtype_traits<FLASH_DTYPE_FP32> {
    typedef float element;
    static __device__ __forceinline__ float to_fp32(element x) {
        return x;
    }
    static __device__ __forceinline__ element from_fp32(float x) {
        return x;
    }
};

template <int DTYPE>
static __device__ __forceinline__ float dtype_load(const void *data, int64_t i) {
    typedef dtype_traits<DTYPE> traits;
    return traits::to_fp32(static_cast<const typename traits::element *>(data)[i]);
}

template <int DTYPE>
static __device__ __forceinline__ void dtype_store(void *data, int64_t i, float x) {
    typedef dtype_traits<DTYPE> traits;
    static_cast<typename traits::element *>(data)[i] = traits::from_fp32(x);
}

#endif
