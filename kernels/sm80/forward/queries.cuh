/*
 * With K of e4m3, Q is multiplied as fp16. Q of bf16 becomes fp16 in shared memory, each row
 * multiplied by a power of two (common/fp16_rows.cuh). Its scores are divided by the same power
 * when they are multiplied by K's scale.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_QUERIES_CUH
#define FLASH_KERNELS_SM80_FORWARD_QUERIES_CUH

#include "common/fp16_rows.cuh"
#include "common/scale.h"
#include "sm80/forward/load.cuh"
#include "sm80/forward/products.cuh"
#include "sm80/forward/rows.cuh"
#include "sm80/forward/tile.cuh"

/* The factor of scores in each of the thread's rows. */
template <flash_config_t C> struct score_factors { float of[m_tiles<C>][2]; };

/* Returns the address of the thread's i-th chunk of a row, which a quad shares chunk by chunk. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t thread_chunk(uint32_t q_shared, int row, int i) {
    return q_shared + chunk_offset<C>(row, i * 4 + threadIdx.x % 4);
}

/* Returns the largest magnitude of a row of bf16, as bits. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t largest_of_row(uint32_t q_shared, int row) {
    uint32_t pair = 0;
#pragma unroll 4
    for (int i = 0; i < row_chunks<C> / 4; ++i) {
        const uint4 x = shared_load(thread_chunk<C>(q_shared, row, i));
        pair = larger_magnitudes(larger_magnitudes(pair, x.x), x.y);
        pair = larger_magnitudes(larger_magnitudes(pair, x.z), x.w);
    }
    uint32_t largest = larger_of_pair(pair);
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    return max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
}

/* Converts a row of bf16 to fp16, and returns the exponent of its power of two. */
template <flash_config_t C>
static __device__ __forceinline__ int convert_row(uint32_t q_shared, int row) {
    const int exponent = fp16_exponent_of_row(largest_of_row<C>(q_shared, row));
    const float factor = power_of_two(exponent);
#pragma unroll 4
    for (int i = 0; i < row_chunks<C> / 4; ++i) {
        const uint32_t chunk = thread_chunk<C>(q_shared, row, i);
        const uint4 x = shared_load(chunk);
        shared_store(chunk,
                     uint4{fp16_from_scaled_bf16(x.x, factor), fp16_from_scaled_bf16(x.y, factor),
                           fp16_from_scaled_bf16(x.z, factor), fp16_from_scaled_bf16(x.w, factor)});
    }
    return exponent;
}

/* Converts the warp's rows of Q to what is multiplied, and returns the factors of their scores. */
template <flash_config_t C>
static __device__ __forceinline__ score_factors<C>
prepare_queries(const flash_params_t &p, const query_tile_t &tile, uint32_t q_shared) {
    const float k_scale = flash_scale_at(&p.k_scale, tile.batch_index, tile.head / p.group);
    score_factors<C> factors;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile_row<C>(m, half);
            const int exponent = p.q_dtype == FLASH_DTYPE_BF16 ? convert_row<C>(q_shared, row) : 0;
            factors.of[m][half] = power_of_two(-exponent) * k_scale;
        }
    __syncwarp();
    return factors;
}

template <flash_config_t C>
static __device__ __forceinline__ void scale_rows(score_tile<C> &s,
                                                  const score_factors<C> &factors) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s.s[m][n][i] *= factors.of[m][i / 2];
}

#endif
