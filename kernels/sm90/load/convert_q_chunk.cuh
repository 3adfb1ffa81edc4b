/*
 * A chunk of a row of Q beside K of e4m3 becomes fp16, times a factor (load/convert_q.cuh).
 */
#ifndef FLASH_KERNELS_SM90_LOAD_CONVERT_Q_CHUNK_CUH
#define FLASH_KERNELS_SM90_LOAD_CONVERT_Q_CHUNK_CUH

#include "common/fp16_rows.cuh"
#include "common/ptx/element.cuh"

/* K's scale is split in two factors. */
typedef struct split_scale {
    float magnitude; /* of units; positive and finite */
    float of_q;      /* 1 or -1; else 0, infinity or NaN */
} split_scale_t;

static __device__ __forceinline__ split_scale_t split_scale(float scale) {
    const float magnitude = fabsf(scale);
    if (magnitude > 0.0f && magnitude < INFINITY)
        return {magnitude, copysignf(1.0f, scale)};
    return {1.0f, scale};
}

static __device__ __forceinline__ uint32_t multiply_fp16(uint32_t pair, float factor) {
    const float2 x = fp32_from_fp16_pair(pair);
    return convert_pair<FLASH_DTYPE_FP16>(x.x * factor, x.y * factor);
}

/* Multiplies a chunk and makes it fp16. */
template <bool BF16> static __device__ __forceinline__ uint4 convert_chunk(uint4 x, float factor) {
    if constexpr (BF16)
        return fp16_from_scaled_bf16(x, factor);
    else
        return {multiply_fp16(x.x, factor), multiply_fp16(x.y, factor), multiply_fp16(x.z, factor),
                multiply_fp16(x.w, factor)};
}

#endif
