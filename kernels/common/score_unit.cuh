/*
 * Scores have a unit: accumulators of QK^T are kept as they are, or as tanh(score / softcap).
 */
#ifndef FLASH_KERNELS_COMMON_SCORE_UNIT_CUH
#define FLASH_KERNELS_COMMON_SCORE_UNIT_CUH

#include "common/params.h"
#include "common/tanh.cuh"

#include <float.h>

constexpr float ln_2 = 0.69314718055994530942f;

/* The value of one unit of scores in the exponent, for base e and base 2. */
typedef struct score_unit {
    float natural;
    float log2;
    float inverse_cap; /* makes a score tanh's argument (tanh.cuh); 0: no cap */
} score_unit_t;

/* Returns the unit of a call. MAY_CAP: the kernel has softcap. A cap so large that its tanh(x) is x
 * counts as none. */
template <bool MAY_CAP>
static __device__ __forceinline__ score_unit_t score_unit_of(const flash_params_t &params) {
    score_unit_t unit = {params.softmax_scale, params.softmax_scale * log2_e, 0.0f};
    if (MAY_CAP && params.softcap > 0.0f) {
        const float inverse_cap = params.softmax_scale / params.softcap * float(1 / tanh_unit);
        if (inverse_cap >= FLT_MIN)
            unit = {params.softcap, params.softcap * log2_e, fminf(inverse_cap, FLT_MAX)};
    }
    return unit;
}

/* Caps the scores of a warp: they become tanh(score / cap), in units of the cap. transform(f): a
 * function of the caller that replaces each score x by f(x). */
template <typename T>
static __device__ __forceinline__ void cap_each(const score_unit_t &unit, const T &transform) {
    uint32_t bits = 0;
    if (unit.inverse_cap == 0.0f)
        return;
    transform([&](float score) {
        const float v = score * unit.inverse_cap;
        bits |= __float_as_uint(v);
        return v;
    });
    if (warp_is_below_2(bits)) {
        const auto p = small_polynomial(1.0f);
        transform([&](float v) { return tanh_by(p, v, 0.0f); });
    } else {
        transform([](float v) { return tanh_of(v); });
    }
}

/* Returns the weight of an attention sink, relative to a reference maximum in the exponent of 2.
 * The sink is in the exponent of e, and may lie anywhere: far below the reference its weight is 0,
 * and far above it infinity, which leaves O no weight. */
static __device__ __forceinline__ float sink_weight(float sink, float log2_reference) {
    return exp2_approx(fmaf(sink, log2_e, -log2_reference));
}

#endif
