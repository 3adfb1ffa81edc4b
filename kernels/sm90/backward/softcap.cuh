/*
 * With a softcap scores become t, the tanh of score / softcap, and dS has the factor 1 - t^2. P is
 * multiplied by it as soon as nothing else needs P.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_SOFTCAP_CUH
#define FLASH_KERNELS_SM90_BACKWARD_SOFTCAP_CUH

#include "common/score_unit.cuh"

/* Caps the scores; without a cap they stay as they are. */
template <int N>
static __device__ __forceinline__ void cap(float (&s)[N], const score_unit_t &unit) {
    cap_each(unit, [&](const auto &f) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            s[i] = f(s[i]);
    });
}

/* Returns P times the derivative of the cap. */
static __device__ __forceinline__ float times_derivative(float p, float t,
                                                         const score_unit_t &unit) {
    return unit.inverse_cap == 0.0f ? p : p * fmaf(-t, t, 1.0f);
}

/* Multiplies P by the derivative of the cap. */
template <int N>
static __device__ __forceinline__ void multiply_by_derivative(float (&p)[N], const float (&t)[N],
                                                              const score_unit_t &unit) {
    if (unit.inverse_cap == 0.0f)
        return;
#pragma unroll
    for (int i = 0; i < N; ++i)
        p[i] *= fmaf(-t[i], t[i], 1.0f);
}

#endif
