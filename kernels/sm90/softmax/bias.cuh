/*
 * Kernels with bias add ALiBi and masks to the scores of a block. Which of them a call has, and of
 * which kind, is asked once for a block, and answered by uniform values, since a score has only a
 * few operations of its own. No lane leaves the others: see ptx/predicated.cuh.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_BIAS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_BIAS_CUH

#include "common/natural_bias.cuh"
#include "sm90/ptx/in_place.cuh"
#include "sm90/softmax/alibi.cuh"
#include "sm90/softmax/mask_bits.cuh"
#include "sm90/softmax/mask_numbers.cuh"
#include "sm90/softmax/mask_of_blocks.cuh"
#include "sm90/softmax/softmax.cuh"

/* Adds the bias; scores have the unit after it then. row_of(half): the bias's row of each of the
 * thread's two rows. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void add_bias(score_tile<C> &s, const flash_bias_t &bias,
                                                const bias_keys_t &keys, const score_units<C> &unit,
                                                const R &row_of) {
    const bool has_alibi = bias.alibi_slopes != nullptr;
    const bool has_mask = mask_covers<C>(bias, keys);
    const bool has_numbers = has_mask && bias.kind == FLASH_MASK_ADD;
    const bool scales = has_scales<C> || bias_adds(bias);
    score_scale_t scale = {log2_unit(unit, 0) * ln_2, log2_unit(unit, 1) * ln_2};
    if (has_alibi) {
        add_alibi<C>(s, keys, scale, row_of);
        scale = {1.0f, 1.0f};
    } else if (scales && !has_numbers) {
        scale_scores<C>(s, scale);
    }
    if (has_numbers)
        add_numbers<C>(s, bias, keys, scale, row_of);
    else if (has_mask && bias.kind == FLASH_MASK_BLOCKS)
        hide_by_blocks<C>(s, bias, keys, row_of);
    else if (has_mask)
        hide_by_bits<C>(s, bias, keys, row_of);
}

/* ---- The reference maximum of scores with numbers ---- */

/* Rows whose maximum is lower have it raised to this: it stays finite in the exponent of 2, and
 * rows may have nothing but the least finite number. */
constexpr float least_max = -0x1p127f;

/* Returns the maximum of a row; NaN if one of its scores is NaN. */
template <flash_config_t C>
static __device__ __forceinline__ float row_max_nan(const score_tile<C> &s, int half) {
    float x = max_nan(s.s[2 * half], s.s[2 * half + 1]);
#pragma unroll
    for (int i = 4; i < score_registers<C>; i += 4)
        x = max_nan(x, max_nan(s.s[i + 2 * half], s.s[i + 2 * half + 1]));
    return quad_max_nan(x);
}

static __device__ __forceinline__ bool needs_repair(float max) {
    return !(max >= least_max) && max != -INFINITY;
}

/* Hides the keys that numbers of -infinity hide, whatever their scores are, and raises what is
 * finite to least_max. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void repair_scores(score_tile<C> &s, const flash_bias_t &bias,
                                                     const bias_keys_t &keys, const R &row_of) {
    if (mask_covers<C>(bias, keys))
        for_each_number<C>(s, bias, keys, row_of, [](float &score, float number, int) {
            hide_if(number == -INFINITY, score);
        });
#pragma unroll
    for (int i = 0; i < score_registers<C>; ++i)
        raise_finite(s.s[i], least_max);
}

/* Raises the reference maxima to those of a block whose scores have their bias, with what numbers
 * still need. That is seldom anything. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ rescale_t
raise_biased_max(softmax_state_t &state, score_tile<C> &s, const flash_bias_t &bias,
                 const bias_keys_t &keys, const softmax_units<C> &unit, const R &row_of) {
    float max[2] = {row_max_nan<C>(s, 0), row_max_nan<C>(s, 1)};
    rescale_t past;
    if (bias.mask != nullptr && bias.kind == FLASH_MASK_ADD &&
        __any_sync(0xffffffffu, needs_repair(max[0]) || needs_repair(max[1]))) {
        repair_scores<C>(s, bias, keys, row_of);
        max[0] = row_max<C>(s, 0);
        max[1] = row_max<C>(s, 1);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
        past.factor[half] = raise_row_max(state, half, max[half], log2_unit(unit, half));
    return past;
}

/* Rescales O if a reference maximum of the warp has changed. With ALiBi the keys that come first
 * mostly have the largest scores. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale_output_if_needed(output_tile<C> &o,
                                                                const rescale_t &past) {
    if (!(has_bias<C> || multiplies_e4m3<C>) ||
        __any_sync(0xffffffffu, past.factor[0] != 1.0f || past.factor[1] != 1.0f))
        rescale_output<C>(o, past);
}

#endif
