/*
 * The softcap takes the tanh of every score, whose x here is score / softcap. The multi-function
 * unit (ex2, rcp) does 16 operations in a clock where multiply-adds are 128, and the softmax needs
 * it for its weights. So small x, |x| < 3/8, have a polynomial, those of middle size, |x| < 3/4, a
 * longer one, and larger ones can share a reciprocal. Beside products of the tensor cores each
 * operation counts: they leave the others little of the registers' ports.
 *
 * x is handed over as v = x / tanh_unit, which is below 2 where x is small: the bits of a warp's v
 * show by one bit whether all are. Where a result is factor * tanh(x) + shift, that costs no more
 * operations than tanh(x).
 */
#ifndef FLASH_KERNELS_COMMON_TANH_CUH
#define FLASH_KERNELS_COMMON_TANH_CUH

#include "common/ptx/math.cuh"

#include <stdint.h>

constexpr float log2_e = 1.44269504088896340736f;
constexpr double tanh_unit = 0.1875;
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

/* ---- Smaller numbers ---- */

/* These are the bits of numbers, joined by "or": bit 30 is set where one is 2 or more, or NaN. */
static __device__ __forceinline__ bool warp_is_below_2(uint32_t bits) {
    return !__any_sync(0xffffffffu, bits & 0x40000000u);
}

/* x is small, or of middle size or small, where v times this is below 2. */
constexpr float small_below_2 = 1.0f, middle_below_2 = 0.5f;

/* factor * tanh(x) / v is a polynomial in the square of v. */
template <int TERMS> struct tanh_polynomial { float c[TERMS]; };
constexpr int small_terms = 3, middle_terms = 5;

/* of_x: coefficients of tanh(x) / x in powers of the square of x. */
template <int TERMS>
static __device__ __forceinline__ tanh_polynomial<TERMS>
scale_polynomial(const double (&of_x)[TERMS], float factor) {
    tanh_polynomial<TERMS> p;
    double power = tanh_unit;
#pragma unroll
    for (int i = 0; i < TERMS; ++i, power *= tanh_unit * tanh_unit)
        p.c[i] = factor * float(of_x[i] * power);
    return p;
}

/* Returns the polynomial of least relative error, 4.3e-6, for small x. */
static __device__ __forceinline__ tanh_polynomial<small_terms> small_polynomial(float factor) {
    return scale_polynomial({0.99999571, -0.33278067, 0.12264759}, factor);
}

/* Returns that for x of middle size; error 6e-7. */
static __device__ __forceinline__ tanh_polynomial<middle_terms> middle_polynomial(float factor) {
    return scale_polynomial({0.99999943, -0.33328252, 0.13258983, -0.05005630, 0.01292963}, factor);
}

/* Returns factor * tanh(x) + shift by the polynomial for its size. */
template <int TERMS>
static __device__ __forceinline__ float tanh_by(const tanh_polynomial<TERMS> &p, float v,
                                                float shift) {
    const float square = v * v;
    float quotient = p.c[TERMS - 1];
#pragma unroll
    for (int i = TERMS - 2; i >= 0; --i)
        quotient = fmaf(quotient, square, p.c[i]);
    return fmaf(v, quotient, shift);
}

#endif
