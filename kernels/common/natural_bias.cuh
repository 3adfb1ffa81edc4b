/*
 * In kernels of SM90 families, scores to which a bias adds something are in the exponent of e then,
 * as the bias is. A mask of bits adds nothing.
 */
#ifndef FLASH_KERNELS_COMMON_NATURAL_BIAS_CUH
#define FLASH_KERNELS_COMMON_NATURAL_BIAS_CUH

#include "common/bias.h"
#include "common/score_unit.cuh"

static __device__ __forceinline__ score_unit_t natural_biased_unit() {
    return {1.0f, log2_e, 0.0f};
}

static __device__ __forceinline__ bool bias_adds(const flash_bias_t &bias) {
    return bias.alibi_slopes != nullptr || (bias.mask != nullptr && bias.kind == FLASH_MASK_ADD);
}

/* Returns the unit of the scores that the softmax of a call sees. unit: that of scores before. */
static __device__ __forceinline__ score_unit_t natural_unit_after_bias(const flash_bias_t &bias,
                                                                       const score_unit_t &unit) {
    return bias_adds(bias) ? natural_biased_unit() : unit;
}

#endif
