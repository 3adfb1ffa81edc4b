/*
 * Q stays in registers: a warp has the rows whose scores it computes, in its own steps of the
 * contraction.
 *
 * Beside a cache of e4m3, which is multiplied as fp16, Q of bf16 becomes fp16 too. Each warp
 * multiplies its part of a row by a power of two of its own (common/fp16_rows.cuh), by which its
 * part of the scores is divided when it is multiplied by K's scale.
 */
#ifndef FLASH_KERNELS_SM80_MLA_QUERIES_CUH
#define FLASH_KERNELS_SM80_MLA_QUERIES_CUH

#include "common/decode/rows.cuh"
#include "common/fp16_rows.cuh"
#include "common/scale.h"
#include "sm80/mla/derive.cuh"

/* The rows whose scores the warp computes, and its number among the warps with these rows. */
template <flash_config_t C> static __device__ __forceinline__ int score_group() {
    return warp_number() / sharing_warps<C>;
}

template <flash_config_t C> static __device__ __forceinline__ int score_part() {
    return warp_number() % sharing_warps<C>;
}

/* Returns the first of the thread's two rows; the other is 8 below. */
template <flash_config_t C> static __device__ __forceinline__ int score_row() {
    return score_group<C>() * SM80_MLA_ROW_GROUP + lane_number() / 4;
}

/* The warp's rows of Q in its steps of the contraction, as the first operand of mma. */
template <flash_config_t C> struct query_fragments { uint32_t of[warp_steps<C>][4]; };

static __device__ __forceinline__ uint32_t load_pair_if(const char *pointer, bool exists) {
    return exists ? __ldg((const uint32_t *)pointer) : 0;
}

template <flash_config_t C>
static __device__ __forceinline__ void load_queries(query_fragments<C> &q,
                                                    const sm80_decode_params_t &params,
                                                    const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int first_column = score_part<C>() * 16 + lane_number() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = score_group<C>() * SM80_MLA_ROW_GROUP + half * 8 + lane_number() / 4;
        const bool exists = row < block.rows;
        const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
        const char *const data =
            (const char *)p.q +
            (row_offset(p, p.q_stride, block, block.first_head_kv, at) + first_column) *
                SM80_MLA_OPERAND_BYTES;
#pragma unroll
        for (int i = 0; i < warp_steps<C>; ++i)
#pragma unroll
            for (int next = 0; next < 2; ++next) {
                const int column = i * sharing_warps<C> * 16 + next * 8;
                q.of[i][2 * next + half] = load_pair_if(data + column * SM80_MLA_OPERAND_BYTES,
                                                        exists && first_column + column < p.d_head);
            }
    }
}

/* ---- Beside a cache of e4m3 ---- */

/* Returns the largest magnitude of the warp's part of a row of bf16, as bits. half: which of the
 * thread's two rows. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t largest_of_part(const query_fragments<C> &q, int half) {
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < warp_steps<C>; ++i)
        pair = larger_magnitudes(larger_magnitudes(pair, q.of[i][half]), q.of[i][2 + half]);
    uint32_t largest = larger_of_pair(pair);
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    return largest;
}

/* Makes fp16 of the warp's part of a row of bf16. Returns the exponent of its power of two. */
template <flash_config_t C>
static __device__ __forceinline__ int convert_part(query_fragments<C> &q, int half) {
    const int exponent = fp16_exponent_of_row(largest_of_part<C>(q, half));
    const float factor = power_of_two(exponent);
#pragma unroll
    for (int i = 0; i < warp_steps<C>; ++i)
#pragma unroll
        for (int next = 0; next < 2; ++next)
            q.of[i][2 * next + half] = fp16_from_scaled_bf16(q.of[i][2 * next + half], factor);
    return exponent;
}

/* Converts Q to what is multiplied, and leaves the factors of the warp's parts of scores, of which
 * no other warp knows. */
template <flash_config_t C>
static __device__ __forceinline__ void
prepare_queries(query_fragments<C> &q, mla_exchange<C> &shared, const flash_params_t &p,
                const decode_block_t &block) {
    if constexpr (has_scales<C>) {
        const float k_scale =
            flash_scale_at(&p.k_scale, block.piece.batch_index, block.first_head_kv);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int exponent = p.q_dtype == FLASH_DTYPE_BF16 ? convert_part<C>(q, half) : 0;
            if (lane_number() % 4 == 0)
                shared.score_factors[score_part<C>()][score_row<C>() + 8 * half] =
                    power_of_two(-exponent) * k_scale;
        }
    }
}

#endif
