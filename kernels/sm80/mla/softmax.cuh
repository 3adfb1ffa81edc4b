/*
 * The warps with the same rows compute an online softmax of them. Each has all scores of the rows,
 * and so the same maxima, and turns its own tiles of S into P for all warps of the block.
 */
#ifndef FLASH_KERNELS_SM80_MLA_SOFTMAX_CUH
#define FLASH_KERNELS_SM80_MLA_SOFTMAX_CUH

#include "common/ptx/convert.cuh"
#include "common/quad.cuh"
#include "common/score_unit.cuh"
#include "sm80/mla/products.cuh"
#include "sm80/mla/walk.cuh"

/* Of the two rows of the warp that a thread has scores of. Maxima are those of scores as Q K^T
 * leaves them, or of capped scores; the scale is applied in the exponent. */
typedef struct softmax_state {
    float max[2];
    float sum[2]; /* of the thread's own columns of P, until the end */
} softmax_state_t;

/* Returns the first of the thread's two rows; the other is 8 below. */
template <flash_config_t C> static __device__ __forceinline__ int score_row() {
    return score_group<C>() * SM80_MLA_ROW_GROUP + lane_number() / 4;
}

template <flash_config_t C, typename F>
static __device__ __forceinline__ void transform_scores(score_tile<C> &s, const F &f) {
#pragma unroll
    for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            s.s[n][i] = f(s.s[n][i]);
}

template <flash_config_t C>
static __device__ __forceinline__ void mask_scores(score_tile<C> &s, const mla_exchange<C> &shared,
                                                   int32_t step_key) {
    const flash_range_t keys[2] = {shared.keys[score_row<C>()], shared.keys[score_row<C>() + 8]};
    const int32_t first = step_key + lane_number() % 4 * 2;
#pragma unroll
    for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (!sees(keys[i / 2], first + n * 8 + i % 2))
                s.s[n][i] = -INFINITY;
}

/* Returns what is subtracted from scores: 0 for a row without a finite score (maximum -inf). */
static __device__ __forceinline__ float subtrahend(float max) {
    return max == -INFINITY ? 0.0f : max;
}

/* Raises the maxima to those of the step's scores. Returns the factors of what is relative to the
 * old ones. */
template <flash_config_t C>
static __device__ __forceinline__ float2 raise_max(softmax_state_t &state, const score_tile<C> &s,
                                                   float log2_unit) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float max = state.max[half];
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n)
            max = fmaxf(max, fmaxf(s.s[n][2 * half], s.s[n][2 * half + 1]));
        max = quad_max(max);
        factor[half] = exp2_approx((state.max[half] - subtrahend(max)) * log2_unit);
        state.max[half] = max;
        state.sum[half] *= factor[half];
    }
    return {factor[0], factor[1]};
}

/* Turns the warp's own tiles of S into P, which is summed up unrounded, and leaves P where
 * fragments of the first operand of mma take it. */
template <flash_config_t C>
static __device__ __forceinline__ void exponentiate(mla_exchange<C> &shared, softmax_state_t &state,
                                                    const score_tile<C> &s, float log2_unit) {
    const float max[2] = {subtrahend(state.max[0]), subtrahend(state.max[1])};
    const int part = score_part<C>(), group = score_group<C>(), lane = lane_number();
    if (part * own_tiles<C> >= key_tiles<C>)
        return;
#pragma unroll
    for (int n = 0; n < own_tiles<C>; ++n) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = s.s[n][i];
#pragma unroll
            for (int other = 1; other * own_tiles<C> < key_tiles<C>; ++other)
                x[i] = part == other ? s.s[other * own_tiles<C> + n][i] : x[i];
            x[i] = exp2_approx((x[i] - max[i / 2]) * log2_unit);
            state.sum[i / 2] += x[i];
        }
        const int tile = part * own_tiles<C> + n;
        uint2 *const p = (uint2 *)&shared.p[group][tile / 2][lane];
        p[tile % 2] = {convert_pair<C.dtype>(x[0], x[1]), convert_pair<C.dtype>(x[2], x[3])};
    }
}

/* Computes P of a step from the scores that the warps have left, and the factors of O before. */
template <flash_config_t C>
static __device__ __forceinline__ void softmax_step(mla_exchange<C> &shared, softmax_state_t &state,
                                                    const key_walk_t &walk, int32_t step_key,
                                                    const score_unit_t &unit) {
    score_tile<C> s;
    take_scores<C>(s, shared);
    cap_each(unit, [&](const auto &f) { transform_scores<C>(s, f); });
    if (is_cut<C>(walk, step_key))
        mask_scores<C>(s, shared, step_key);
    const float2 factor = raise_max<C>(state, s, unit.log2);
    if (score_part<C>() == 0 && lane_number() % 4 == 0) {
        shared.factor[score_row<C>()] = factor.x;
        shared.factor[score_row<C>() + 8] = factor.y;
    }
    exponentiate<C>(shared, state, s, unit.log2);
}

/* Rescales O, unless no row has a new maximum, as is mostly so after the first steps. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale(output_tile<C> &o, const mla_exchange<C> &shared) {
    float factor[row_groups<C>][2];
    bool is_same = true;
#pragma unroll
    for (int m = 0; m < row_groups<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            factor[m][half] = shared.factor[m * SM80_MLA_ROW_GROUP + half * 8 + lane_number() / 4];
            is_same &= factor[m][half] == 1.0f;
        }
    if (__all_sync(0xffffffffu, is_same))
        return;
#pragma unroll
    for (int m = 0; m < row_groups<C>; ++m)
#pragma unroll
        for (int n = 0; n < column_tiles<C>; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                o.o[m][n][i] *= factor[m][i / 2];
}

#endif
