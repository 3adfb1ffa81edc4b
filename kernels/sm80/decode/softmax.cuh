/*
 * A warp computes an online softmax over its steps. Maxima are those of scores as Q K^T leaves
 * them, or of capped scores; the scale is applied in the exponent.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_SOFTMAX_CUH
#define FLASH_KERNELS_SM80_DECODE_SOFTMAX_CUH

#include "common/score_unit.cuh"
#include "sm80/decode/products.cuh"
#include "sm80/ptx/movmatrix.cuh"

template <flash_config_t C> struct softmax_state {
    float max[row_groups<C>][2];
    float sum[row_groups<C>][2]; /* only of the lane's keys, until the end */
};

template <flash_config_t C> static __device__ __forceinline__ softmax_state<C> empty_softmax() {
    softmax_state<C> state;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            state.max[n][j] = -INFINITY;
            state.sum[n][j] = 0.0f;
        }
    return state;
}

/* Returns what is subtracted from scores: 0 for a row without a finite score (maximum -inf). */
static __device__ __forceinline__ float subtrahend(float max) {
    return max == -INFINITY ? 0.0f : max;
}

/* Returns the maximum over the eight lanes that hold a row: those with the same t. */
static __device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int step = 4; step < DECODE_WARP_THREADS; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

static __device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int step = 4; step < DECODE_WARP_THREADS; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <flash_config_t C, typename F>
static __device__ __forceinline__ void transform_scores(score_tile<C> &s, const F &f) {
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s.of[n][m][i] = f(s.of[n][m][i]);
}

template <flash_config_t C>
static __device__ __forceinline__ void cap_scores(score_tile<C> &s, const score_unit_t &unit) {
    cap_each(unit, [&](const auto &f) { transform_scores<C>(s, f); });
}

template <flash_config_t C>
static __device__ __forceinline__ void mask_scores(score_tile<C> &s, const row_masks<C> &masks,
                                                   int32_t step_key) {
    const int32_t first = step_key + threadIdx.x % DECODE_WARP_THREADS / 4;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (!sees<C>(masks, n, i % 2, first + m * 16 + i / 2 * 8))
                    s.of[n][m][i] = -INFINITY;
}

/* Rescales the sum and O of one row to a new maximum. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale_row(softmax_state<C> &state, output_tile<C> &o,
                                                   int n, int j, float max, float log2_unit) {
    const float factor = exp2_approx((state.max[n][j] - subtrahend(max)) * log2_unit);
    state.max[n][j] = max;
    state.sum[n][j] *= factor;
#pragma unroll
    for (int d = 0; d < head_tiles<C>; ++d) {
        o.of[n][d][j] *= factor;
        o.of[n][d][2 + j] *= factor;
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void update_max(softmax_state<C> &state, output_tile<C> &o,
                                                  const score_tile<C> &s, float log2_unit) {
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n) {
        float max[2] = {state.max[n][0], state.max[n][1]};
#pragma unroll
        for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                max[i % 2] = fmaxf(max[i % 2], s.of[n][m][i]);
        max[0] = row_max(max[0]);
        max[1] = row_max(max[1]);
        if (!__any_sync(0xffffffffu, max[0] > state.max[n][0] || max[1] > state.max[n][1]))
            continue;
        rescale_row<C>(state, o, n, 0, max[0], log2_unit);
        rescale_row<C>(state, o, n, 1, max[1], log2_unit);
    }
}

/* Turns S into P, which is summed up unrounded, and packs P as the second operand of O^T. */
template <flash_config_t C>
static __device__ __forceinline__ weight_fragments<C>
exponentiate(score_tile<C> &s, softmax_state<C> &state, float log2_unit) {
    weight_fragments<C> p;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n) {
        const float max[2] = {subtrahend(state.max[n][0]), subtrahend(state.max[n][1])};
#pragma unroll
        for (int m = 0; m < key_tiles<C>; ++m) {
            float(&x)[4] = s.of[n][m];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                x[i] = exp2_approx((x[i] - max[i % 2]) * log2_unit);
            state.sum[n][0] += x[0] + x[2];
            state.sum[n][1] += x[1] + x[3];
            p.pair[n][m][0] = movmatrix_trans(convert_pair<operand_dtype<C>>(x[0], x[1]));
            p.pair[n][m][1] = movmatrix_trans(convert_pair<operand_dtype<C>>(x[2], x[3]));
        }
    }
    return p;
}

#endif
