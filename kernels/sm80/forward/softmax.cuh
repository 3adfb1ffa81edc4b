/*
 * Online softmax over blocks of keys has two forms. The plain one follows the formula: scale the
 * scores, subtract the maximum, rescale the past. The optimized one folds the scale into the
 * exponent's multiply-add, assigns at the first block instead of updating, and rescales only when a
 * maximum has grown so far that old sums and P could leave their range. Every reference maximum
 * gives the same result, as long as O, the sums and P are all relative to it.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_SOFTMAX_CUH
#define FLASH_KERNELS_SM80_FORWARD_SOFTMAX_CUH

#include "common/bias.cuh"
#include "common/quad.cuh"
#include "common/score_unit.cuh"
#include "sm80/forward/products.cuh"
#include "sm80/forward/rows.cuh"

/* P stays below 2^4 relative to a maximum that lags behind. A larger limit would not be faster, and
 * would more often give the largest P, which weighs most, a rounding error of its own. */
constexpr float max_growth_log2 = 4.0f;

/* The reference maximum of each row, to which its sum and O are relative, in units of S (plain
 * form: of log2). A thread's sum covers its own columns until the end. */
template <flash_config_t C> struct softmax_state {
    float max[m_tiles<C>][2];
    float sum[m_tiles<C>][2];
};

template <flash_config_t C>
static __device__ __forceinline__ score_unit_t make_score_unit(const flash_params_t &params) {
    return score_unit_of<has_softcap<C>>(params);
}

/* Returns the unit of the scores that the softmax sees: bias leaves them in the exponent of 2. */
template <flash_config_t C>
static __device__ __forceinline__ score_unit_t softmax_unit(const score_unit_t &unit) {
    if constexpr (has_bias<C>)
        return biased_unit();
    return unit;
}

template <flash_config_t C, typename F>
static __device__ __forceinline__ void transform_scores(score_tile<C> &s, const F &f) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s.s[m][n][i] = f(s.s[m][n][i]);
}

template <flash_config_t C>
static __device__ __forceinline__ void cap_scores(score_tile<C> &s, const score_unit_t &unit) {
    cap_each(unit, [&](const auto &f) { transform_scores<C>(s, f); });
}

template <flash_config_t C> static __device__ __forceinline__ softmax_state<C> empty_softmax() {
    softmax_state<C> state;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            state.max[m][half] = -INFINITY;
            state.sum[m][half] = 0.0f;
        }
    return state;
}

template <flash_config_t C>
static __device__ __forceinline__ float thread_max(const score_tile<C> &s, int m, int half) {
    float x = fmaxf(s.s[m][0][2 * half], s.s[m][0][2 * half + 1]);
#pragma unroll
    for (int n = 1; n < key_tiles<C>; ++n)
        x = fmaxf(x, fmaxf(s.s[m][n][2 * half], s.s[m][n][2 * half + 1]));
    return x;
}

/* Returns what is subtracted from scores. A row without a finite score has a maximum of -infinity,
 * which must not be subtracted. The widest kernel without features has no register left for a
 * comparison of floats, so it compares bits; beyond those of -infinity there are only NaNs. */
template <flash_config_t C> static __device__ __forceinline__ float subtrahend(float max) {
    const bool none = C.features == 0 ? __float_as_uint(max) >= 0xff800000u : max == -INFINITY;
    return none ? 0.0f : max;
}

template <flash_config_t C>
static __device__ __forceinline__ void scale_output_row(output_tile<C> &o, int m, int half,
                                                        float factor) {
#pragma unroll
    for (int n = 0; n < head_tiles<C>; ++n) {
        o.o[m][n][2 * half] *= factor;
        o.o[m][n][2 * half + 1] *= factor;
    }
}

/* Rescales the sum and O of one row to a new maximum. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale_row(softmax_state<C> &state, output_tile<C> &o,
                                                   int m, int half, float max, float log2_unit) {
    const float factor = exp2_approx((state.max[m][half] - subtrahend<C>(max)) * log2_unit);
    state.max[m][half] = max;
    state.sum[m][half] *= factor;
    scale_output_row<C>(o, m, half, factor);
}

template <flash_config_t C>
static __device__ __forceinline__ void scale_scores(score_tile<C> &s, float log2_unit) {
    transform_scores<C>(s, [&](float x) { return x * log2_unit; });
}

/* Updates the maxima in the plain form, which rescales every row in every block. */
template <flash_config_t C>
static __device__ __forceinline__ void update_max(softmax_state<C> &state, output_tile<C> &o,
                                                  const score_tile<C> &s) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            rescale_row<C>(state, o, m, half,
                           fmaxf(state.max[m][half], quad_max(thread_max<C>(s, m, half))), 1.0f);
}

/* Updates the maxima in the optimized form, which rescales the rows of a warp together, and only
 * when one of them needs it. A vote replaces the exchange of maxima within quads until then. */
template <flash_config_t C>
static __device__ __forceinline__ void update_max_lazily(softmax_state<C> &state, output_tile<C> &o,
                                                         const score_tile<C> &s, float log2_unit) {
    float max[m_tiles<C>][2];
    bool grown = false;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            max[m][half] = thread_max<C>(s, m, half);
            grown |= (max[m][half] - state.max[m][half]) * log2_unit > max_growth_log2;
        }
    if (!__any_sync(0xffffffffu, grown))
        return;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            rescale_row<C>(state, o, m, half, fmaxf(state.max[m][half], quad_max(max[m][half])),
                           log2_unit);
}

template <flash_config_t C>
static __device__ __forceinline__ void assign_max(softmax_state<C> &state, const score_tile<C> &s) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            state.max[m][half] = quad_max(thread_max<C>(s, m, half));
}

/* Returns exp(score - max), unnormalised. scaled_max: max in the exponent's units. */
template <flash_config_t C>
static __device__ __forceinline__ float exponential(float score, float log2_unit, float max,
                                                    float scaled_max) {
    return exp2_approx(C.optimized_softmax ? fmaf(score, log2_unit, -scaled_max) : score - max);
}

/* Turns S into P, which is summed up unrounded, four values at a time to save registers. */
template <flash_config_t C>
static __device__ __forceinline__ void exponentiate(score_tile<C> &s, softmax_state<C> &state,
                                                    float log2_unit) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float max = subtrahend<C>(state.max[m][half]);
            const float scaled_max = max * log2_unit;
#pragma unroll
            for (int n = 0; n < key_tiles<C>; n += 2) {
                float *a = &s.s[m][n][2 * half];
                float *b = &s.s[m][n + 1][2 * half];
                a[0] = exponential<C>(a[0], log2_unit, max, scaled_max);
                a[1] = exponential<C>(a[1], log2_unit, max, scaled_max);
                b[0] = exponential<C>(b[0], log2_unit, max, scaled_max);
                b[1] = exponential<C>(b[1], log2_unit, max, scaled_max);
                state.sum[m][half] += (a[0] + a[1]) + (b[0] + b[1]);
            }
        }
}

/* Updates the state by a block of keys, and turns S into P. FIRST: there is no block before it. */
template <flash_config_t C, bool FIRST>
static __device__ __forceinline__ void softmax_block(score_tile<C> &s, softmax_state<C> &state,
                                                     output_tile<C> &o, const score_unit_t &unit) {
    if constexpr (!C.optimized_softmax) {
        scale_scores<C>(s, unit.log2);
        update_max<C>(state, o, s);
    } else if constexpr (FIRST) {
        assign_max<C>(state, s);
    } else {
        update_max_lazily<C>(state, o, s, unit.log2);
    }
    exponentiate<C>(s, state, unit.log2);
}

/* Adds up the sums of the quad, after the last block. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_sums(softmax_state<C> &state) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            state.sum[m][half] = quad_sum(state.sum[m][half]);
}

/* Returns the sum of a row with its sink, by which O is divided. */
template <flash_config_t C>
static __device__ __forceinline__ float sum_with_sink(const softmax_state<C> &state, int m,
                                                      int half, const score_unit_t &unit,
                                                      float sink) {
    const float reference = state.max[m][half] * (C.optimized_softmax ? unit.log2 : 1.0f);
    return state.sum[m][half] + sink_weight(sink, reference);
}

/* Returns the natural logarithm of the sum of exponentials; -infinity for a row that saw no key. */
template <flash_config_t C>
static __device__ __forceinline__ float row_lse(const softmax_state<C> &state, int m, int half,
                                                const score_unit_t &unit) {
    const float max = state.max[m][half] * (C.optimized_softmax ? unit.natural : ln_2);
    return state.sum[m][half] == 0.0f ? -INFINITY : max + logf(state.sum[m][half]);
}

#endif
