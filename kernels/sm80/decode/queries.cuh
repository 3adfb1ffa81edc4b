/*
 * Q of a block's rows as the second operand of S^T = K Q^T. With g = lane / 4 and t = lane % 4 a
 * lane holds Q of row g of each group of eight rows.
 *
 * Beside K of e4m3, which is multiplied as fp16, Q of bf16 becomes fp16 too. Its exponents may not
 * fit: each row is multiplied by a power of two that puts its largest element just below fp16's
 * end, and its scores are divided by it again. Elements down to 2^-28 of the largest keep all bits.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_QUERIES_CUH
#define FLASH_KERNELS_SM80_DECODE_QUERIES_CUH

#include "common/ptx/convert.cuh"
#include "common/scale.h"
#include "sm80/decode/fragments.cuh"
#include "sm80/decode/rows.cuh"

/* pair[n][i][half]: two columns from i * 16 + query_column(half) on of row n * 8 + g. */
template <flash_config_t C> struct query_fragments {
    uint32_t pair[row_groups<C>][head_tiles<C>][2];
};

/* of[n][j]: what one unit of a score of row n * 8 + 2t + j is worth. */
template <flash_config_t C> struct score_factors { float of[row_groups<C>][2]; };

static __device__ __forceinline__ uint32_t load_pair_if(const char *pointer, bool exists) {
    return exists ? __ldg((const uint32_t *)pointer) : 0;
}

template <flash_config_t C>
static __device__ __forceinline__ query_fragments<C>
load_queries(const sm80_decode_params_t &params, const decode_block_t &block, int32_t head_kv) {
    const flash_params_t &p = params.attention;
    query_fragments<C> q;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n) {
        const int32_t row = n * 8 + threadIdx.x % DECODE_WARP_THREADS / 4;
        const bool exists = row < block.rows;
        const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
        const char *data =
            (const char *)p.q + row_offset(p, p.q_stride, block, head_kv, at) * query_bytes;
#pragma unroll
        for (int i = 0; i < head_tiles<C>; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = i * 16 + query_column<C>(half);
                q.pair[n][i][half] =
                    load_pair_if(data + column * query_bytes, exists && column < p.d_head);
            }
    }
    return q;
}

/* ---- Q of bf16 as fp16 ---- */

/* The larger of each of two pairs of bf16, whose signs are cleared: their bits are in order. */
static __device__ __forceinline__ uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
    return __vmaxu2(a, b & 0x7fff7fffu);
}

/* Returns the largest magnitude of a row of bf16, by its bits. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t largest_of_row(const uint32_t (&row)[head_tiles<C>][2]) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < head_tiles<C>; ++i)
        largest = larger_magnitudes(larger_magnitudes(largest, row[i][0]), row[i][1]);
    largest = max(largest & 0xffffu, largest >> 16);
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    return largest;
}

/* 2^exponent, within the exponents of fp32. */
static __device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

/* Multiplies a row of bf16 by a power of two and makes it fp16; returns the power's exponent. The
 * bounds keep it and its inverse within fp32. */
template <flash_config_t C>
static __device__ __forceinline__ int convert_row(uint32_t (&row)[head_tiles<C>][2]) {
    constexpr int largest_exponent = 14, least = -100;
    const int exponent = max((int)(largest_of_row<C>(row) >> 7) - 127, least);
    const float factor = power_of_two(largest_exponent - exponent);
#pragma unroll
    for (int i = 0; i < head_tiles<C>; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t pair = row[i][half];
            row[i][half] = convert_pair<FLASH_DTYPE_FP16>(
                __uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor);
        }
    return largest_exponent - exponent;
}

/* ---- What scores are worth ---- */

/* Makes Q what is multiplied, and returns what scores are worth then. */
template <flash_config_t C>
static __device__ __forceinline__ score_factors<C>
prepare_queries(query_fragments<C> &q, const flash_params_t &p, int32_t batch_index,
                int32_t head_kv) {
    score_factors<C> factors;
    if constexpr (!is_quantised<C>)
        return factors;
    const float k_scale = flash_scale_at(&p.k_scale, batch_index, head_kv);
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n) {
        const int exponent = p.q_dtype == FLASH_DTYPE_BF16 ? convert_row<C>(q.pair[n]) : 0;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int lane_of_row = (threadIdx.x % 4 * 2 + j) * 4;
            const int of_row = __shfl_sync(0xffffffffu, exponent, lane_of_row);
            factors.of[n][j] = power_of_two(-of_row) * k_scale;
        }
    }
    return factors;
}

#endif
