/*
 * The warps with the same rows compute an online softmax of them. Each turns its own tiles of S
 * into P, relative to maxima that all of them know, and says whether scores have outgrown these.
 * Then, which is rare after the first steps, each raises them by all scores of the step, and
 * computes P again. Every reference gives the same result, as long as O, the sums and P are all
 * relative to it. With a bias the scores are kept with it after the first time.
 */
#ifndef FLASH_KERNELS_SM80_MLA_SOFTMAX_CUH
#define FLASH_KERNELS_SM80_MLA_SOFTMAX_CUH

#include "common/ptx/convert.cuh"
#include "common/quad.cuh"
#include "common/score_unit.cuh"
#include "sm80/mla/bias.cuh"
#include "sm80/mla/products.cuh"
#include "sm80/mla/walk.cuh"

/* P stays below 2^4 relative to a maximum that lags behind. A larger limit would more often give
 * the largest P, which weighs most, a rounding error of its own. */
constexpr float max_growth_log2 = 4.0f;

/* A thread has this of each of the two rows of which it has scores. Maxima are references, of
 * scores as Q K^T leaves them, or of capped scores, whose scale is applied in the exponent; or of
 * scores with a bias. */
typedef struct softmax_state {
    float max[2];
    float sum[2]; /* of the thread's own columns of P, until the end */
} softmax_state_t;

/* Takes the scores of TILES tiles from the first one on, and caps them. */
template <flash_config_t C, int TILES>
static __device__ __forceinline__ void take_capped_scores(float (&s)[TILES][4],
                                                          const mla_exchange<C> &shared, int first,
                                                          const score_unit_t &unit) {
    take_scores<C>(s, shared, first);
    cap_each(unit, [&](const auto &f) {
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s[n][i] = f(s[n][i]);
    });
}

/* Hides the keys of the step that rows do not see. */
template <flash_config_t C, int TILES>
static __device__ __forceinline__ void
hide_keys(float (&s)[TILES][4], const mla_exchange<C> &shared, const key_walk_t &walk,
          int32_t step_key, int first) {
    if (!is_cut<C>(walk, step_key))
        return;
    const flash_range_t keys[2] = {shared.keys[score_row<C>()], shared.keys[score_row<C>() + 8]};
    const int32_t first_key = step_key + first * 8 + lane_number() % 4 * 2;
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (!sees(keys[i / 2], first_key + n * 8 + i % 2))
                s[n][i] = -INFINITY;
}

/* Takes the scores of TILES tiles from the first one on, as the softmax sees them. With a bias they
 * must have been kept. */
template <flash_config_t C, int TILES>
static __device__ __forceinline__ void
take_final_scores(float (&s)[TILES][4], const mla_exchange<C> &shared, const key_walk_t &walk,
                  int32_t step_key, int first, const step_units<C> &units) {
    if constexpr (has_bias<C>) {
        take_kept_scores<C>(s, shared, first);
    } else {
        take_capped_scores<C>(s, shared, first, units.of[0]);
        hide_keys<C>(s, shared, walk, step_key, first);
    }
}

/* Does so for the warp's own tiles, and keeps their scores with the bias. */
template <flash_config_t C>
static __device__ __forceinline__ void
take_biased_scores(float (&s)[own_tiles<C>][4], mla_exchange<C> &shared, const key_walk_t &walk,
                   int32_t step_key, int first, const step_units<C> &units,
                   const sm80_decode_params_t &params, const key_source_t &source) {
    const flash_bias_t &bias = params.attention.bias;
    take_capped_scores<C>(s, shared, first, units.of[0]);
    if (flash_has_bias(&bias))
        add_biases<C>(s, bias, shared, step_key, first, units.of[0].log2);
    hide_keys<C>(s, shared, walk, step_key, first);
    hide_holes<C>(s, params, source, walk, step_key, first);
    keep_scores<C>(shared, s, first);
}

/* Returns what is subtracted from scores: 0 for a row without a finite score (maximum -inf). */
static __device__ __forceinline__ float subtrahend(float max) {
    return max == -INFINITY ? 0.0f : max;
}

/* Says whether P of a score would be too large, or has no reference yet. */
static __device__ __forceinline__ bool outgrows(float score, float max, float log2_unit) {
    return (score - max) * log2_unit > max_growth_log2 || (max == -INFINITY && score > max);
}

/* Turns the warp's own tiles of S of a step into P, and leaves P where fragments of the first
 * operand of mma take it. AGAIN: this is the second time, after maxima were raised. sum: of P of
 * the thread's rows, unrounded. Returns whether a score has outgrown the maxima. */
template <flash_config_t C, bool AGAIN>
static __device__ __forceinline__ bool
exponentiate(float (&sum)[2], mla_exchange<C> &shared, const softmax_state_t &state,
             const key_walk_t &walk, int32_t step_key, int parity, const step_units<C> &units,
             const sm80_decode_params_t &params, const key_source_t &source) {
    const int first = score_part<C>() * own_tiles<C>, group = score_group<C>();
    sum[0] = sum[1] = 0.0f;
    if (first >= key_tiles<C>)
        return false;
    float s[own_tiles<C>][4];
    if constexpr (has_bias<C> && !AGAIN)
        take_biased_scores<C>(s, shared, walk, step_key, first, units, params, source);
    else
        take_final_scores<C>(s, shared, walk, step_key, first, units);
    const score_unit_t &seen_unit = units.of[has_bias<C>];
    bool has_outgrown = false;
#pragma unroll
    for (int n = 0; n < own_tiles<C>; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float max = state.max[i / 2];
            has_outgrown |= outgrows(s[n][i], max, seen_unit.log2);
            s[n][i] = exp2_approx((s[n][i] - subtrahend(max)) * seen_unit.log2);
            sum[i / 2] += s[n][i];
        }
        uint2 *const p = (uint2 *)&shared.p[parity][group][(first + n) / 2][lane_number()];
        p[(first + n) % 2] = {convert_pair<operand_dtype<C>>(s[n][0], s[n][1]),
                              convert_pair<operand_dtype<C>>(s[n][2], s[n][3])};
    }
    return has_outgrown;
}

/* Raises the maxima that scores of a step have outgrown, and leaves the factors of O. */
template <flash_config_t C>
static __device__ __forceinline__ void raise_max(softmax_state_t &state, mla_exchange<C> &shared,
                                                 const key_walk_t &walk, int32_t step_key,
                                                 const step_units<C> &units) {
    const score_unit_t &seen_unit = units.of[has_bias<C>];
    float s[key_tiles<C>][4];
    take_final_scores<C>(s, shared, walk, step_key, 0, units);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float max = -INFINITY;
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n)
            max = fmaxf(max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        max = quad_max(max);
        max = outgrows(max, state.max[half], seen_unit.log2) ? max : state.max[half];
        const float factor = exp2_approx((state.max[half] - subtrahend(max)) * seen_unit.log2);
        state.max[half] = max;
        state.sum[half] *= factor;
        if (score_part<C>() == 0 && lane_number() % 4 == 0)
            shared.factor[score_row<C>() + 8 * half] = factor;
    }
}

/* Rescales O to the maxima that were raised. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale(output_tile<C> &o, const mla_exchange<C> &shared) {
#pragma unroll
    for (int m = 0; m < row_groups<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float factor =
                shared.factor[m * SM80_MLA_ROW_GROUP + half * 8 + lane_number() / 4];
#pragma unroll
            for (int n = 0; n < column_tiles<C>; ++n) {
                o.o[m][n][2 * half] *= factor;
                o.o[m][n][2 * half + 1] *= factor;
            }
        }
}

#endif
