/*
 * A block writes a head of a new token to a cache of latent tokens: each of its warps has the 128
 * columns that share a scale, four in each thread, and the first warp also the columns of bf16.
 */
#ifndef FLASH_KERNELS_COMMON_APPEND_LATENT_CUH
#define FLASH_KERNELS_COMMON_APPEND_LATENT_CUH

#include "common/append_elements.cuh"
#include "common/latent.h"

constexpr int latent_threads = LATENT_CODES / 4;
static_assert(32 * 4 == LATENT_GROUP, "a warp has the columns of a scale");

/* Loads a column of a new token, of fp16, bf16 or fp32. */
static __device__ __forceinline__ float load_column(const char *token, int dtype, int column) {
    const int size = dtype_size(dtype);
    single_element element;
    float x[1];
    element.load(token + column * size, size);
    element.widen(dtype, x);
    return x[0];
}

/* Returns the scale of the warp's columns: as on CPUs, bit for bit. */
static __device__ __forceinline__ float scale_of_group(const float (&x)[4]) {
    float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const float quotient = __fdiv_rn(largest, (float)LATENT_LARGEST);
    return quotient > 0.0f ? quotient : 1.0f;
}

/* Writes a token of 576 columns of dtype to its place in the cache. */
static __device__ __forceinline__ void append_latent_token(const char *token, int dtype, char *to) {
    const int thread = threadIdx.x, first = 4 * thread;
    float x[4], rotary[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        x[i] = load_column(token, dtype, first + i);
    if (thread < LATENT_ROTARY / 2)
        for (int i = 0; i < 2; ++i)
            rotary[i] = load_column(token, dtype, LATENT_CODES + 2 * thread + i);
    const float scale = scale_of_group(x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        x[i] = __fdiv_rn(x[i], scale);
    *reinterpret_cast<uint32_t *>(to + first) =
        narrow_to_e4m3(x[0], x[1]) | narrow_to_e4m3(x[2], x[3]) << 16;
    if (thread % 32 == 0)
        *reinterpret_cast<float *>(to + LATENT_SCALES_AT + thread / 32 * 4) = scale;
    if (thread < LATENT_ROTARY / 2)
        *reinterpret_cast<uint32_t *>(to + LATENT_ROTARY_AT + 4 * thread) =
            convert_pair<FLASH_DTYPE_BF16>(rotary[0], rotary[1]);
}

#endif
