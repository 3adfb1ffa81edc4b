/*
 * Scores have a unit: accumulators of QK^T are kept as they are, or as tanh(score / softcap).
 */
#ifndef FLASH_KERNELS_COMMON_SCORE_UNIT_CUH
#define FLASH_KERNELS_COMMON_SCORE_UNIT_CUH

#include "common/params.h"
#include "common/ptx/math.cuh"

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.69314718055994530942f;

/* The value of one unit of scores in the exponent, for base e and base 2. */
typedef struct score_unit {
    float natural;
    float log2;
    float inverse_cap; /* factor of a score before the cap; 0: no cap */
} score_unit_t;

/* Returns the unit of a call. MAY_CAP: the kernel has softcap. */
template <bool MAY_CAP>
static __device__ __forceinline__ score_unit_t score_unit_of(const flash_params_t &params) {
    score_unit_t unit = {params.softmax_scale, params.softmax_scale * log2_e, 0.0f};
    if (MAY_CAP && params.softcap > 0.0f) {
        unit.natural = params.softcap;
        unit.log2 = params.softcap * log2_e;
        unit.inverse_cap = params.softmax_scale / params.softcap;
    }
    return unit;
}

/* Computes tanh as 1 - 2 / (e^2x + 1). Its absolute error, 1e-7, is what matters in a score. */
static __device__ __forceinline__ float tanh_by_exp2(float x) {
    return 1.0f - 2.0f * reciprocal_approx(exp2_approx(x * (2.0f * log2_e)) + 1.0f);
}

/* Returns the weight of an attention sink, relative to a reference maximum in the exponent of 2.
 * The sink is in the exponent of e, and may lie anywhere: far below the reference its weight is 0,
 * and far above it infinity, which leaves O no weight. */
static __device__ __forceinline__ float sink_weight(float sink, float log2_reference) {
    return exp2_approx(fmaf(sink, log2_e, -log2_reference));
}

#endif
