/*
 * P of e4m3 has 448, 2^8.8, as its largest number, and loses bits below 2^-6. So the reference
 * maximum follows the scores, but only where one is so far above it that P would be cut off: O and
 * the sums are seldom rescaled then. Lanes look at their own columns, and ask each other only
 * whether any of them has such a score.
 */
#ifndef FLASH_KERNELS_SM90_FP8_REFERENCE_CUH
#define FLASH_KERNELS_SM90_FP8_REFERENCE_CUH

#include "common/ptx/math.cuh"
#include "sm90/fp8/products.cuh"
#include "sm90/softmax/mask.cuh"
#include "sm90/softmax/softmax.cuh"

/* Returns the maximum of the thread's own columns of a row. */
template <flash_config_t C>
static __device__ __forceinline__ float own_max(const score_tile<C> &s, int half) {
    float x = fmaxf(s.s[2 * half], s.s[2 * half + 1]);
    float y = fmaxf(s.s[2 * half + 4], s.s[2 * half + 5]); /* two, for the latency */
#pragma unroll
    for (int i = 8; i < score_registers<C>; i += 8) {
        x = fmaxf(x, fmaxf(s.s[i + 2 * half], s.s[i + 2 * half + 1]));
        y = fmaxf(y, fmaxf(s.s[i + 2 * half + 4], s.s[i + 2 * half + 5]));
    }
    return fmaxf(x, y);
}

/* Raises the reference of a row, in the exponent of 2. Returns the factor for O. */
template <flash_config_t C>
static __device__ __forceinline__ float
raise_reference(softmax_state_t &state, const softmax_units<C> &unit, int half, float rise) {
    const float factor = exp2_approx(-rise);
    state.max[half] += rise * reciprocal_approx(log2_unit(unit, half));
    state.sum[half] *= factor;
    return factor;
}

/* Gives a row whose reference has risen to its maximum room above it, if very many keys have
 * weight: it seldom has to rise again then, and what is lost below P's range does not count.
 * Returns the factor for O. */
template <flash_config_t C>
static __device__ __forceinline__ float
give_room(softmax_state_t &state, const softmax_units<C> &unit, int half, bool has_risen) {
    constexpr float room = 2.0f;
    const bool has_room = quad_sum(state.sum[half]) >= 4.0f * sum_of_many * 4.0f;
    return raise_reference<C>(state, unit, half, has_risen && has_room ? room : 0.0f);
}

/* Raises the reference maxima if a score of the warp has left one too far behind. Says whether. */
template <flash_config_t C>
static __device__ __forceinline__ bool follow_scores(softmax_state_t &state, rescale_t &past,
                                                     const score_tile<C> &s,
                                                     const softmax_units<C> &unit) {
    static_assert(reference_lag - reference_margin<C> < 8.8f, "P stays below 448");
    const float of_block[2] = {own_max<C>(s, 0), own_max<C>(s, 1)};
    bool behind = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float ahead = (of_block[half] - state.max[half]) * log2_unit(unit, half);
        behind |= ahead > allowed_lag(state, half);
    }
    past = {{1.0f, 1.0f}};
    const bool rises = __any_sync(0xffffffffu, behind);
    if (rises) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float factor =
                raise_row_max(state, half, quad_max(of_block[half]), log2_unit(unit, half));
            past.factor[half] = factor;
            if constexpr (exponentiates_in_chunks<C>)
                past.factor[half] *= give_room<C>(state, unit, half, factor < 1.0f);
        }
    }
    return rises;
}

/* Rescales O and the weights of rows where reference maxima have risen. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale_rows(output_tile<C> &o, second_level<C> &level,
                                                    const rescale_t &past) {
    rescale_output<C>(o, past);
    rescale_weights<C>(level, past);
}

/* Caps scores and, if the block may be CUT, hides what rows do not see of it. */
template <flash_config_t C, bool CUT>
static __device__ __forceinline__ void
prepare_scores(score_tile<C> &s, const flash_params_t &params, const tile_of<C> &tile,
               const score_units<C> &unit, int32_t block) {
    cap_scores<C, false>(s, unit);
    if (CUT && is_cut(tile, block))
        mask_scores<C>(s, params, tile, block);
}

#endif
