/*
 * A quad is the four threads that hold a row of an accumulator: lanes 4g ... 4g + 3 of a warp.
 */
#ifndef FLASH_KERNELS_COMMON_QUAD_CUH
#define FLASH_KERNELS_COMMON_QUAD_CUH

#include "common/ptx/math.cuh"

static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Does the same, but returns NaN if one is NaN. */
static __device__ __forceinline__ float quad_max_nan(float x) {
    x = max_nan(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return max_nan(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#endif
