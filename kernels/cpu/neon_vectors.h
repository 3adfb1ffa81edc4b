/*
 * This file defines the vector primitives that tiled.h lists, in NEON (Advanced SIMD of AArch64).
 */
#ifndef FLASH_KERNELS_CPU_NEON_VECTORS_H
#define FLASH_KERNELS_CPU_NEON_VECTORS_H

#include "common/quant_block.h"
#include "cpu/vector.h"
#include "flashattn.h"

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t vec_t;

/* A micro-kernel of 6 x 4 accumulators, a row of B and an element of A takes 29 of 32 registers. */
#define VEC_WIDTH       4
#define TILE_ROWS       6
#define TILE_VECS       4
#define DOT_ROWS        6
#define VEC_SPLITS_BF16 0

/* ---- Arithmetic ---- */

ALWAYS_INLINE vec_t vec_zero(void) {
    return vdupq_n_f32(0);
}

ALWAYS_INLINE vec_t vec_set1(float x) {
    return vdupq_n_f32(x);
}

ALWAYS_INLINE vec_t vec_add(vec_t a, vec_t b) {
    return vaddq_f32(a, b);
}

ALWAYS_INLINE vec_t vec_sub(vec_t a, vec_t b) {
    return vsubq_f32(a, b);
}

ALWAYS_INLINE vec_t vec_mul(vec_t a, vec_t b) {
    return vmulq_f32(a, b);
}

ALWAYS_INLINE vec_t vec_div(vec_t a, vec_t b) {
    return vdivq_f32(a, b);
}

ALWAYS_INLINE vec_t vec_fma(vec_t a, vec_t b, vec_t c) {
    return vfmaq_f32(c, a, b);
}

ALWAYS_INLINE vec_t vec_max(vec_t a, vec_t b) {
    return vmaxq_f32(a, b);
}

ALWAYS_INLINE vec_t vec_abs(vec_t x) {
    return vabsq_f32(x);
}

ALWAYS_INLINE vec_t vec_select_less(vec_t a, vec_t b, vec_t x, vec_t y) {
    return vbslq_f32(vcltq_f32(a, b), x, y);
}

ALWAYS_INLINE bool vec_any_less(vec_t a, vec_t b) {
    return vmaxvq_u32(vcltq_f32(a, b)) != 0;
}

/* Returns 2^n of a whole number n, -126 ... 127. */
ALWAYS_INLINE vec_t exp2_whole(vec_t n) {
    const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
}

/* Computes 2^x = 2^floor(x) * 2^r by a minimax polynomial of 2^r on [0, 1) with p(0) = 1, relative
 * error 1.5e-7. Results that would be subnormal are 0; those beyond 2^127 are 2^127. */
ALWAYS_INLINE vec_t vec_exp2(vec_t x) {
    const vec_t lowest = vec_set1(-125);
    const vec_t clamped = vminq_f32(vec_set1(127), vmaxq_f32(lowest, x));
    const vec_t n = vrndmq_f32(clamped);
    const vec_t r = vec_sub(clamped, n);
    vec_t p = vec_set1(0x1.e97516p-10f);
    p = vec_fma(p, r, vec_set1(0x1.27784ep-7f));
    p = vec_fma(p, r, vec_set1(0x1.c91ce8p-5f));
    p = vec_fma(p, r, vec_set1(0x1.ebdb56p-3f));
    p = vec_fma(p, r, vec_set1(0x1.62e4bap-1f));
    p = vec_fma(p, r, vec_set1(1));
    return vec_select_less(x, lowest, vec_zero(), vec_mul(p, exp2_whole(n)));
}

/* ---- Dropout ---- */

typedef uint64x2x2_t calls_t;

#define CALLS          4
#define CALLS_TOGETHER 2

ALWAYS_INLINE vec_t vec_keep(vec_t x, uint32_t bits) {
    const uint32x4_t lanes = {1, 2, 4, 8};
    const uint32x4_t kept = vtstq_u32(vdupq_n_u32(bits), lanes);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), kept));
}

ALWAYS_INLINE calls_t calls_set1(uint32_t x) {
    const calls_t calls = {{vdupq_n_u64(x), vdupq_n_u64(x)}};
    return calls;
}

ALWAYS_INLINE calls_t calls_load(const uint64_t *from) {
    const calls_t calls = {{vld1q_u64(from), vld1q_u64(from + 2)}};
    return calls;
}

ALWAYS_INLINE calls_t calls_add(calls_t a, calls_t b) {
    const calls_t calls = {{vaddq_u64(a.val[0], b.val[0]), vaddq_u64(a.val[1], b.val[1])}};
    return calls;
}

ALWAYS_INLINE calls_t calls_multiply(calls_t a, calls_t b) {
    const calls_t calls = {{vmull_u32(vmovn_u64(a.val[0]), vmovn_u64(b.val[0])),
                            vmull_u32(vmovn_u64(a.val[1]), vmovn_u64(b.val[1]))}};
    return calls;
}

ALWAYS_INLINE calls_t calls_mix(calls_t a, calls_t b, calls_t c) {
    const calls_t calls = {{veorq_u64(vshrq_n_u64(a.val[0], 32), veorq_u64(b.val[0], c.val[0])),
                            veorq_u64(vshrq_n_u64(a.val[1], 32), veorq_u64(b.val[1], c.val[1]))}};
    return calls;
}

/* Returns a bit for each of the 8 halves of words that are not below the threshold. */
ALWAYS_INLINE uint32_t kept_halves(calls_t words, uint16x8_t threshold) {
    const uint16x8_t bits = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint32x4_t lower =
        vuzp1q_u32(vreinterpretq_u32_u64(words.val[0]), vreinterpretq_u32_u64(words.val[1]));
    return vaddvq_u16(vandq_u16(vcgeq_u16(vreinterpretq_u16_u32(lower), threshold), bits));
}

ALWAYS_INLINE uint32_t calls_kept(calls_t low, calls_t high, uint32_t threshold) {
    const uint16x8_t least = vdupq_n_u16((uint16_t)threshold);
    return kept_halves(low, least) | kept_halves(high, least) << 8;
}

/* ---- Across lanes ---- */

ALWAYS_INLINE float vec_reduce_add(vec_t x) {
    return vaddvq_f32(x);
}

ALWAYS_INLINE float vec_reduce_max(vec_t x) {
    return vmaxvq_f32(x);
}

ALWAYS_INLINE void vec_sum4(vec_t a, vec_t b, vec_t c, vec_t d, float *sums) {
    vst1q_f32(sums, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

ALWAYS_INLINE vec_t low_halves(vec_t a, vec_t b) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

ALWAYS_INLINE vec_t high_halves(vec_t a, vec_t b) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

ALWAYS_INLINE void vec_transpose(vec_t r[VEC_WIDTH]) {
    const vec_t even_01 = vtrn1q_f32(r[0], r[1]), odd_01 = vtrn2q_f32(r[0], r[1]);
    const vec_t even_23 = vtrn1q_f32(r[2], r[3]), odd_23 = vtrn2q_f32(r[2], r[3]);
    r[0] = low_halves(even_01, even_23);
    r[1] = low_halves(odd_01, odd_23);
    r[2] = high_halves(even_01, even_23);
    r[3] = high_halves(odd_01, odd_23);
}

/* ---- Memory: byte by byte, for any alignment ---- */

/* Loads elements of e4m3 as fp16: their bits with a zero behind the sign, since fp16's exponent is
 * one bit longer. NaN stays NaN. */
ALWAYS_INLINE void vec_load_e4m3(const void *from, vec_t pair[2]) {
    const uint16x8_t words = vreinterpretq_u16_s16(vshll_n_s8(vld1_s8(from), 7));
    const uint16x8_t all = vdupq_n_u16(0x3f80);
    const uint16x8_t nan = vceqq_u16(vandq_u16(words, all), all);
    const uint16x8_t halves = vorrq_u16(vandq_u16(words, vdupq_n_u16(0xbf80)), nan);
    pair[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves)));
    pair[1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)));
}

ALWAYS_INLINE vec_t vec_load_bytes(const void *from) {
    int8_t bytes[8] = {0};
    memcpy(bytes, from, VEC_WIDTH);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(bytes)))));
}

ALWAYS_INLINE vec_t vec_load_nibbles(const void *from, bool high) {
    uint8_t bytes[8] = {0};
    memcpy(bytes, from, VEC_WIDTH);
    const uint8x8_t pairs = vld1_u8(bytes);
    const uint8x8_t nibbles = high ? vshr_n_u8(pairs, 4) : vand_u8(pairs, vdup_n_u8(0xf));
    const int8x8_t numbers = vsub_s8(vreinterpret_s8_u8(nibbles), vdup_n_s8(Q4_0_ZERO));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(numbers))));
}

ALWAYS_INLINE vec_t vec_set1_fp16(uint16_t half) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
}

ALWAYS_INLINE vec_t vec_from_halves(int32_t dtype, uint16x4_t x) {
    DTYPES_KNOWN(7); /* types of 8 bits have no halves */
    if (dtype == FLASH_DTYPE_FP16)
        return vcvt_f32_f16(vreinterpret_f16_u16(x));
    return vreinterpretq_f32_u32(vshll_n_u16(x, 16));
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
ALWAYS_INLINE uint16x4_t vec_to_bf16(vec_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}

ALWAYS_INLINE uint16x4_t vec_to_halves(int32_t dtype, vec_t x) {
    DTYPES_KNOWN(7); /* nothing is stored in 8 bits */
    return dtype == FLASH_DTYPE_FP16 ? vreinterpret_u16_f16(vcvt_f16_f32(x)) : vec_to_bf16(x);
}

ALWAYS_INLINE vec_t vec_load(int32_t dtype, const void *from) {
    if (dtype == FLASH_DTYPE_FP32)
        return vreinterpretq_f32_u8(vld1q_u8(from));
    if (dtype == FLASH_DTYPE_E4M3) {
        uint8_t elements[2 * VEC_WIDTH] = {0};
        vec_t pair[2];
        memcpy(elements, from, VEC_WIDTH);
        vec_load_e4m3(elements, pair);
        return pair[0];
    }
    return vec_from_halves(dtype, vreinterpret_u16_u8(vld1_u8(from)));
}

ALWAYS_INLINE vec_t vec_load_first(int32_t dtype, const void *from, int n) {
    uint8_t bytes[VEC_WIDTH * sizeof(float)] = {0};
    memcpy(bytes, from, (size_t)(n * dtype_size(dtype)));
    return vec_load(dtype, bytes);
}

ALWAYS_INLINE void vec_store(int32_t dtype, void *to, vec_t x) {
    if (dtype == FLASH_DTYPE_FP32)
        vst1q_u8(to, vreinterpretq_u8_f32(x));
    else
        vst1_u8(to, vreinterpret_u8_u16(vec_to_halves(dtype, x)));
}

ALWAYS_INLINE void vec_store_first(int32_t dtype, void *to, vec_t x, int n) {
    uint8_t bytes[VEC_WIDTH * sizeof(float)];
    vec_store(dtype, bytes, x);
    memcpy(to, bytes, (size_t)(n * dtype_size(dtype)));
}

#endif
