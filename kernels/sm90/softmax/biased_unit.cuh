/*
 * Scores that have a bias are in the exponent of e, as the bias is.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_BIASED_UNIT_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_BIASED_UNIT_CUH

#include "common/bias.h"
#include "common/score_unit.cuh"

static __device__ __forceinline__ score_unit_t sm90_biased_unit() {
    return {1.0f, log2_e, 0.0f};
}

/* Returns the unit of the scores that the softmax of a call sees. unit: that of scores before. */
static __device__ __forceinline__ score_unit_t sm90_unit_after_bias(const flash_bias_t &bias,
                                                                    const score_unit_t &unit) {
    return flash_has_bias(&bias) ? sm90_biased_unit() : unit;
}

#endif
