/*
 * Device code adds ALiBi and masks to scores that are in the exponent of 2.
 */
#ifndef FLASH_KERNELS_COMMON_BIAS_CUH
#define FLASH_KERNELS_COMMON_BIAS_CUH

#include "common/bias.h"
#include "common/dtype.cuh"
#include "common/ptx/math.cuh"
#include "common/score_unit.cuh"

/* Returns the number that the mask adds to a key that it covers. */
static __device__ __forceinline__ float load_bias(const flash_bias_t &bias, int64_t at) {
    DTYPES_KNOWN(7); /* numbers are of no other type */
    if (bias.dtype == FLASH_DTYPE_FP16)
        return dtype_load<FLASH_DTYPE_FP16>(bias.mask, at);
    if (bias.dtype == FLASH_DTYPE_BF16)
        return dtype_load<FLASH_DTYPE_BF16>(bias.mask, at);
    return dtype_load<FLASH_DTYPE_FP32>(bias.mask, at);
}

/* Returns what joins the scaled score of a key, in the exponent of e; -infinity hides the key.
 * HAS_FACTORS: the mask's numbers are multiplied. */
template <bool HAS_FACTORS>
static __device__ __forceinline__ float bias_of_key(const flash_bias_t &bias,
                                                    const flash_bias_row_t &row, int32_t key) {
    float sum = flash_bias_alibi(&row, key);
    if (!flash_bias_covers(&bias, &row, key))
        return sum;
    const int64_t at = flash_bias_at(&bias, &row, key);
    if (bias.kind == FLASH_MASK_ADD)
        return sum + (HAS_FACTORS ? flash_scaled_number(load_bias(bias, at), row.factor)
                                  : load_bias(bias, at));
    const uint32_t word = static_cast<const uint32_t *>(bias.mask)[at];
    return flash_bias_shows(word, &row, key) ? sum : -INFINITY;
}

/* Returns a bias that hides no key in the exponent of 2, where the least finite numbers stay
 * finite. */
static __device__ __forceinline__ float log2_bias(float bias) {
    return max_nan(bias * log2_e, -FLT_MAX);
}

/* Returns a score with its bias. A hidden key has -infinity, whatever its score is. */
static __device__ __forceinline__ float add_bias(float score, float log2_unit, float bias) {
    return bias == -INFINITY ? -INFINITY : fmaf(score, log2_unit, log2_bias(bias));
}

/* The unit of scores that have a bias. */
static __device__ __forceinline__ score_unit_t biased_unit() {
    return {ln_2, 1.0f, 0.0f};
}

/* Returns the unit of the scores that the softmax of a call sees. */
static __device__ __forceinline__ score_unit_t unit_after_bias(const flash_bias_t &bias,
                                                               const score_unit_t &unit) {
    return flash_has_bias(&bias) ? biased_unit() : unit;
}

#endif
