/*
 * Q of a block's rows is the second operand of S^T = K Q^T. With g = lane / 4 and t = lane % 4 a
 * lane holds Q of row g of each group of eight rows.
 *
 * With K of e4m3, which is multiplied as fp16, Q of bf16 becomes fp16 too. Each row is multiplied
 * by a power of two (common/fp16_rows.cuh), by which its scores are divided. Q may also be of e4m3
 * there, with scales; fp16 holds its elements exactly.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_QUERIES_CUH
#define FLASH_KERNELS_SM80_DECODE_QUERIES_CUH

#include "common/fp16_rows.cuh"
#include "common/ptx/e4m3.cuh"
#include "common/scale.h"
#include "sm80/decode/fragments.cuh"
#include "sm80/decode/rows.cuh"

/* pair[n][i][half]: two columns from i * 16 + query_column(half) on of row n * 8 + g. */
template <flash_config_t C> struct query_fragments {
    uint32_t pair[row_groups<C>][head_tiles<C>][2];
};

/* of[n][j]: the factor of a score of row n * 8 + 2t + j. */
template <flash_config_t C> struct score_factors { float of[row_groups<C>][2]; };

static __device__ __forceinline__ uint32_t load_pair_if(const char *pointer, bool exists) {
    return exists ? __ldg((const uint32_t *)pointer) : 0;
}

/* Says whether Q is of e4m3. */
template <flash_config_t C>
static __device__ __forceinline__ bool has_e4m3_queries(const flash_params_t &p) {
    return converts<C> && p.q_dtype == FLASH_DTYPE_E4M3;
}

/* Loads Q. Of e4m3 a head tile's first pair has the lane's four columns, which lie side by side. */
template <flash_config_t C>
static __device__ __forceinline__ query_fragments<C>
load_queries(const sm80_decode_params_t &params, const decode_block_t &block, int32_t head_kv) {
    const flash_params_t &p = params.attention;
    const bool is_e4m3 = has_e4m3_queries<C>(p);
    query_fragments<C> q;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n) {
        const int32_t row = n * 8 + threadIdx.x % DECODE_WARP_THREADS / 4;
        const bool exists = row < block.rows;
        const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
        const char *data = (const char *)p.q + row_offset(p, p.q_stride, block, head_kv, at) *
                                                   (is_e4m3 ? 1 : query_bytes);
#pragma unroll
        for (int i = 0; i < head_tiles<C>; ++i) {
            const int first = i * 16 + query_column<C>(0);
            if (is_e4m3) {
                q.pair[n][i][0] = load_pair_if(data + first, exists && first < p.d_head);
                continue;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = i * 16 + query_column<C>(half);
                q.pair[n][i][half] =
                    load_pair_if(data + column * query_bytes, exists && column < p.d_head);
            }
        }
    }
    return q;
}

/* ---- Q of bf16 as fp16 ---- */

/* Returns the largest magnitude of a row of bf16, as bits. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t largest_of_row(const uint32_t (&row)[head_tiles<C>][2]) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < head_tiles<C>; ++i)
        largest = larger_magnitudes(larger_magnitudes(largest, row[i][0]), row[i][1]);
    largest = larger_of_pair(largest);
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    return largest;
}

/* Multiplies a row of bf16 by a power of two and converts it to fp16. Returns the exponent. */
template <flash_config_t C>
static __device__ __forceinline__ int convert_row(uint32_t (&row)[head_tiles<C>][2]) {
    const int exponent = fp16_exponent_of_row(largest_of_row<C>(row));
    const float factor = power_of_two(exponent);
#pragma unroll
    for (int i = 0; i < head_tiles<C>; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            row[i][half] = fp16_from_scaled_bf16(row[i][half], factor);
    return exponent;
}

/* ---- Q of e4m3 as fp16 ---- */

template <flash_config_t C>
static __device__ __forceinline__ void widen_row(uint32_t (&row)[head_tiles<C>][2]) {
#pragma unroll
    for (int i = 0; i < head_tiles<C>; ++i) {
        const e4m3_pairs_t columns = fp16_from_e4m3(row[i][0]);
        row[i][0] = columns.low;
        row[i][1] = columns.high;
    }
}

/* ---- Factors of scores ---- */

/* Returns which of eight rows the lane's scores j are of. */
static __device__ __forceinline__ int row_of_score(int j) {
    return threadIdx.x % 4 * 2 + j;
}

/* Returns the scale of a row of Q of e4m3, and 1 for other types. */
template <flash_config_t C>
static __device__ __forceinline__ float load_q_scale(const sm80_decode_params_t &params,
                                                     const decode_block_t &block, int32_t head_kv,
                                                     int32_t row) {
    const flash_params_t &p = params.attention;
    if (!has_e4m3_queries<C>(p))
        return 1.0f;
    const head_row_t at = find_row(params, block.row_begin + min(row, block.rows - 1));
    return flash_q_scale_at(&p, block.piece.batch_index, block.sequence.q_begin + at.query,
                            (int64_t)head_kv * p.group + at.head);
}

/* Converts Q to what is multiplied, and returns the factors of its scores. */
template <flash_config_t C>
static __device__ __forceinline__ score_factors<C>
prepare_queries(query_fragments<C> &q, const sm80_decode_params_t &params,
                const decode_block_t &block, int32_t head_kv) {
    const flash_params_t &p = params.attention;
    score_factors<C> factors{};
    if constexpr (!has_scales<C>)
        return factors;
    const float k_scale = flash_scale_at(&p.k_scale, block.piece.batch_index, head_kv);
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            factors.of[n][j] = load_q_scale<C>(params, block, head_kv, n * 8 + row_of_score(j));
    if (has_e4m3_queries<C>(p)) {
#pragma unroll
        for (int n = 0; n < row_groups<C>; ++n)
            widen_row<C>(q.pair[n]);
    }
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n) {
        const int exponent = p.q_dtype == FLASH_DTYPE_BF16 ? convert_row<C>(q.pair[n]) : 0;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int of_row = __shfl_sync(0xffffffffu, exponent, row_of_score(j) * 4);
            factors.of[n][j] *= power_of_two(-of_row) * k_scale;
        }
    }
    return factors;
}

#endif
