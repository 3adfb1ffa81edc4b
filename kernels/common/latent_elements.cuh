/*
 * Elements of latent tokens are multiplied as bf16: scale * element, rounded to fp32 and then to
 * bf16.
 */
#ifndef FLASH_KERNELS_COMMON_LATENT_ELEMENTS_CUH
#define FLASH_KERNELS_COMMON_LATENT_ELEMENTS_CUH

#include "common/latent.h"
#include "common/ptx/convert.cuh"
#include "common/ptx/e4m3.cuh"
#include "common/ptx/element.cuh"

static __device__ __forceinline__ uint32_t scaled_bf16(uint32_t fp16_pair, float scale) {
    const float2 x = fp32_from_fp16_pair(fp16_pair);
    return convert_pair<FLASH_DTYPE_BF16>(x.x * scale, x.y * scale);
}

/* Returns eight elements, of which each register of bytes has four. */
static __device__ __forceinline__ uint4 scaled_eight(uint32_t low, uint32_t high, float scale) {
    const e4m3_pairs_t a = fp16_from_e4m3(low), b = fp16_from_e4m3(high);
    return {scaled_bf16(a.low, scale), scaled_bf16(a.high, scale), scaled_bf16(b.low, scale),
            scaled_bf16(b.high, scale)};
}

#endif
