/*
 * The softcap takes the tanh of every score, whose x here is score / softcap. The multi-function
 * unit (ex2, rcp) does 16 operations in a clock where multiply-adds are 128, and the softmax needs
 * it for its weights. So small x have a polynomial, and larger ones can share a reciprocal.
 *
 * x is handed over as v = x / tanh_unit, which is below 2 where x is small, |x| < 3/4: the bits of
 * a warp's v show by one bit whether all are. Where a result is factor * tanh(x) + shift, that
 * costs no more operations than tanh(x).
 */
#ifndef FLASH_KERNELS_COMMON_TANH_CUH
#define FLASH_KERNELS_COMMON_TANH_CUH

#include "common/ptx/math.cuh"

#include <stdint.h>

constexpr float log2_e = 1.44269504088896340736f;
constexpr double tanh_unit = 0.375;
constexpr float tanh_exponent = 2.0f * log2_e * float(tanh_unit); /* e^2x = 2^(tanh_exponent * v) */

/* ---- Numbers of any size ---- */

/* Returns (e^2x + 1) / 2, by its exponent of 2. */
static __device__ __forceinline__ float tanh_denominator(float exponent) {
    return exp2_approx(exponent) + 0.5f;
}

/* Returns tanh(x) = 1 - 2 / (e^2x + 1). Its absolute error is 5e-7. */
static __device__ __forceinline__ float tanh_of(float v) {
    return 1.0f - reciprocal_approx(tanh_denominator(fmaf(v, tanh_exponent, -1.0f)));
}

/* Replaces four v by factor * tanh(x) + shift, with one reciprocal for the product of the four
 * denominators, which are at most 2^29. Absolute error of tanh: 7e-7. One NaN makes all NaN. */
static __device__ __forceinline__ void tanh_of_four(float &a, float &b, float &c, float &d,
                                                    float factor, float shift) {
    constexpr float largest_exponent = 29.0f; /* at x = 10.4, where tanh(x) is 1 in fp32 */
    float *const v[4] = {&a, &b, &c, &d};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        *v[i] = tanh_denominator(min_nan(fmaf(*v[i], tanh_exponent, -1.0f), largest_exponent));
    const float ab = a * b, cd = c * d;
    const float inverse = factor * reciprocal_approx(ab * cd);
    const float inverse_ab = inverse * cd, inverse_cd = inverse * ab;
    const float end = factor + shift;
    const float of_a = fmaf(-inverse_ab, b, end), of_c = fmaf(-inverse_cd, d, end);
    b = fmaf(-inverse_ab, a, end);
    d = fmaf(-inverse_cd, c, end);
    a = of_a;
    c = of_c;
}

/* ---- Small numbers ---- */

/* These are the bits of numbers, joined by "or": bit 30 is set where one is 2 or more, or NaN. */
static __device__ __forceinline__ bool warp_is_small(uint32_t bits) {
    return !__any_sync(0xffffffffu, bits & 0x40000000u);
}

/* factor * tanh(x) / v is a polynomial in the square of v. */
constexpr int tanh_terms = 5;
typedef struct tanh_polynomial {
    float c[tanh_terms];
} tanh_polynomial_t;

/* Returns the polynomial of least relative error, 6e-7. */
static __device__ __forceinline__ tanh_polynomial_t scale_tanh(float factor) {
    constexpr double of_x[tanh_terms] = {0.99999943, -0.33328252, 0.13258983, -0.05005630,
                                         0.01292963};
    tanh_polynomial_t p;
    double power = tanh_unit;
#pragma unroll
    for (int i = 0; i < tanh_terms; ++i, power *= tanh_unit * tanh_unit)
        p.c[i] = factor * float(of_x[i] * power);
    return p;
}

/* Returns factor * tanh(x) + shift of a small number. */
static __device__ __forceinline__ float small_tanh(const tanh_polynomial_t &p, float v,
                                                   float shift) {
    const float square = v * v;
    float quotient = p.c[tanh_terms - 1];
#pragma unroll
    for (int i = tanh_terms - 2; i >= 0; --i)
        quotient = fmaf(quotient, square, p.c[i]);
    return fmaf(v, quotient, shift);
}

#endif
