/*
 * This file defines the vector primitives that tiled.h lists, in AVX-512 (F, BW, DQ, VL).
 */
#ifndef FLASH_KERNELS_CPU_AVX512_VECTORS_H
#define FLASH_KERNELS_CPU_AVX512_VECTORS_H

#include "common/dtype.h"
#include "cpu/vector.h"
#include "flashattn.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m512 vec_t;

/* A micro-kernel of 6 x 4 accumulators, a row of B and an element of A takes 29 of 32 registers. */
#define VEC_WIDTH       16
#define TILE_ROWS       6
#define TILE_VECS       4
#define DOT_ROWS        6
#define VEC_SPLITS_BF16 1

/* ---- Arithmetic ---- */

ALWAYS_INLINE vec_t vec_zero(void) {
    return _mm512_setzero_ps();
}

ALWAYS_INLINE vec_t vec_set1(float x) {
    return _mm512_set1_ps(x);
}

ALWAYS_INLINE vec_t vec_add(vec_t a, vec_t b) {
    return _mm512_add_ps(a, b);
}

ALWAYS_INLINE vec_t vec_sub(vec_t a, vec_t b) {
    return _mm512_sub_ps(a, b);
}

ALWAYS_INLINE vec_t vec_mul(vec_t a, vec_t b) {
    return _mm512_mul_ps(a, b);
}

ALWAYS_INLINE vec_t vec_div(vec_t a, vec_t b) {
    return _mm512_div_ps(a, b);
}

ALWAYS_INLINE vec_t vec_fma(vec_t a, vec_t b, vec_t c) {
    return _mm512_fmadd_ps(a, b, c);
}

ALWAYS_INLINE vec_t vec_max(vec_t a, vec_t b) {
    return _mm512_max_ps(a, b);
}

ALWAYS_INLINE vec_t vec_abs(vec_t x) {
    return _mm512_abs_ps(x);
}

ALWAYS_INLINE vec_t vec_select_less(vec_t a, vec_t b, vec_t x, vec_t y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

ALWAYS_INLINE bool vec_any_less(vec_t a, vec_t b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0;
}

/* Computes 2^x = 2^floor(x) * 2^r by a minimax polynomial of 2^r on [0, 1) with p(0) = 1, relative
 * error 1.5e-7. What would be subnormal is 0, since such numbers slow products down. */
ALWAYS_INLINE vec_t vec_exp2(vec_t x) {
    const vec_t r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec_t p = vec_set1(0x1.e97516p-10f);
    p = vec_fma(p, r, vec_set1(0x1.27784ep-7f));
    p = vec_fma(p, r, vec_set1(0x1.c91ce8p-5f));
    p = vec_fma(p, r, vec_set1(0x1.ebdb56p-3f));
    p = vec_fma(p, r, vec_set1(0x1.62e4bap-1f));
    p = vec_fma(p, r, vec_set1(1));
    const __mmask16 normal = _mm512_cmp_ps_mask(x, vec_set1(-125), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(normal, p, x);
}

/* ---- Dropout ---- */

typedef __m512i calls_t;

#define CALLS          8
#define CALLS_TOGETHER 4

ALWAYS_INLINE vec_t vec_keep(vec_t x, uint32_t bits) {
    return _mm512_maskz_mov_ps((__mmask16)bits, x);
}

ALWAYS_INLINE calls_t calls_set1(uint32_t x) {
    return _mm512_set1_epi64(x);
}

ALWAYS_INLINE calls_t calls_load(const uint64_t *from) {
    return _mm512_loadu_si512(from);
}

ALWAYS_INLINE calls_t calls_add(calls_t a, calls_t b) {
    return _mm512_add_epi64(a, b);
}

ALWAYS_INLINE calls_t calls_multiply(calls_t a, calls_t b) {
    return _mm512_mul_epu32(a, b);
}

ALWAYS_INLINE calls_t calls_mix(calls_t a, calls_t b, calls_t c) {
    return _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), b, c, 0x96);
}

ALWAYS_INLINE uint32_t calls_kept(calls_t low, calls_t high, uint32_t threshold) {
    const __m512i order =
        _mm512_setr_epi32(0, 2, 4, 6, 16, 18, 20, 22, 8, 10, 12, 14, 24, 26, 28, 30);
    return _mm512_cmpge_epu16_mask(_mm512_permutex2var_epi32(low, order, high),
                                   _mm512_set1_epi16((int16_t)threshold));
}

/* ---- Across lanes ---- */

ALWAYS_INLINE float vec_reduce_add(vec_t x) {
    return _mm512_reduce_add_ps(x);
}

ALWAYS_INLINE float vec_reduce_max(vec_t x) {
    return _mm512_reduce_max_ps(x);
}

/* Returns [a0 + a2, b0 + b2, a1 + a3, b1 + b3] of each quarter. */
ALWAYS_INLINE vec_t add_pairs(vec_t a, vec_t b) {
    return vec_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

ALWAYS_INLINE vec_t unpacklo_pairs(vec_t a, vec_t b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

ALWAYS_INLINE vec_t unpackhi_pairs(vec_t a, vec_t b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

ALWAYS_INLINE void vec_sum4(vec_t a, vec_t b, vec_t c, vec_t d, float *sums) {
    const vec_t ab = add_pairs(a, b), cd = add_pairs(c, d);
    const vec_t quarters = vec_add(unpacklo_pairs(ab, cd), unpackhi_pairs(ab, cd));
    const __m256 halves =
        _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    _mm_storeu_ps(sums,
                  _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}

/* Transposes the 4 x 4 squares of four rows: row j gets column 4 i + j in quarter i. */
ALWAYS_INLINE void transpose_quarters(vec_t r[4]) {
    const vec_t t0 = _mm512_unpacklo_ps(r[0], r[1]), t1 = _mm512_unpackhi_ps(r[0], r[1]);
    const vec_t t2 = _mm512_unpacklo_ps(r[2], r[3]), t3 = _mm512_unpackhi_ps(r[2], r[3]);
    r[0] = unpacklo_pairs(t0, t2);
    r[1] = unpackhi_pairs(t0, t2);
    r[2] = unpacklo_pairs(t1, t3);
    r[3] = unpackhi_pairs(t1, t3);
}

ALWAYS_INLINE void vec_transpose(vec_t r[VEC_WIDTH]) {
    UNROLL for (int i = 0; i < 16; i += 4) transpose_quarters(r + i);
    UNROLL for (int j = 0; j < 4; j++) {
        const vec_t even_01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        const vec_t odd_01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        const vec_t even_23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        const vec_t odd_23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
        r[j] = _mm512_shuffle_f32x4(even_01, even_23, 0x88);
        r[4 + j] = _mm512_shuffle_f32x4(odd_01, odd_23, 0x88);
        r[8 + j] = _mm512_shuffle_f32x4(even_01, even_23, 0xdd);
        r[12 + j] = _mm512_shuffle_f32x4(odd_01, odd_23, 0xdd);
    }
}

/* ---- Memory ---- */

ALWAYS_INLINE vec_t vec_from_bf16(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
ALWAYS_INLINE __m256i vec_to_bf16(vec_t x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half_ulp = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(_mm512_add_epi32(bits, half_ulp), nan, bits,
                                                 _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* Returns elements of e4m3 as fp16: their bits with a zero behind the sign, since fp16's exponent
 * is one bit longer. NaN stays NaN. */
ALWAYS_INLINE __m256i halves_of_e4m3(__m128i x) {
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(x), 7);
    const __m256i all = _mm256_set1_epi16(0x3f80);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(words, all), all);
    const __m256i halves = _mm256_and_si256(words, _mm256_set1_epi16((int16_t)0xbf80));
    return _mm256_mask_mov_epi16(halves, nan, _mm256_set1_epi16(0x7e00));
}

ALWAYS_INLINE void vec_load_e4m3(const void *from, vec_t pair[2]) {
    const __m512i words = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256(from)), 7);
    const __m512i all = _mm512_set1_epi16(0x3f80);
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(words, all), all);
    const __m512i numbers = _mm512_and_si512(words, _mm512_set1_epi16((int16_t)0xbf80));
    const __m512i halves = _mm512_mask_mov_epi16(numbers, nan, _mm512_set1_epi16(0x7e00));
    pair[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    pair[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}

ALWAYS_INLINE vec_t vec_load_bytes(const void *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
}

ALWAYS_INLINE vec_t vec_load_nibbles(const void *from, bool high) {
    const vec_t numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from));
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(bytes, 4) : bytes, numbers);
}

ALWAYS_INLINE vec_t vec_set1_fp16(uint16_t half) {
    return _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)half));
}

ALWAYS_INLINE vec_t vec_load(int32_t dtype, const void *from) {
    DTYPES_KNOWN(7);
    if (dtype == FLASH_DTYPE_FP32)
        return _mm512_loadu_ps(from);
    if (dtype == FLASH_DTYPE_E4M3)
        return _mm512_cvtph_ps(halves_of_e4m3(_mm_loadu_si128(from)));
    const __m256i halves = _mm256_loadu_si256(from);
    return dtype == FLASH_DTYPE_FP16 ? _mm512_cvtph_ps(halves) : vec_from_bf16(halves);
}

ALWAYS_INLINE vec_t vec_load_first(int32_t dtype, const void *from, int n) {
    DTYPES_KNOWN(7);
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (dtype == FLASH_DTYPE_FP32)
        return _mm512_maskz_loadu_ps(mask, from);
    if (dtype == FLASH_DTYPE_E4M3)
        return _mm512_cvtph_ps(halves_of_e4m3(_mm_maskz_loadu_epi8(mask, from)));
    const __m256i halves = _mm256_maskz_loadu_epi16(mask, from);
    return dtype == FLASH_DTYPE_FP16 ? _mm512_cvtph_ps(halves) : vec_from_bf16(halves);
}

ALWAYS_INLINE void vec_split_bf16(const void *from, vec_t pair[2]) {
    __m512i words = _mm512_loadu_si512(from);
    __asm__("" : "+v"(words)); /* loaded once: crossing lines costs twice */
    const __m512i odd = _mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000));
    pair[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    pair[1] = _mm512_castsi512_ps(odd);
}

/* Permutes both vectors, whose lanes count from 0 to 31: the first result has the lanes `low`, the
 * second those eight further. */
ALWAYS_INLINE void permute_pair(vec_t pair[2], __m512i low) {
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const vec_t first = pair[0], second = pair[1];
    pair[0] = _mm512_permutex2var_ps(first, low, second);
    pair[1] = _mm512_permutex2var_ps(first, high, second);
}

ALWAYS_INLINE void vec_join(vec_t pair[2]) {
    permute_pair(pair, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
}

ALWAYS_INLINE __m256i vec_to_halves(int32_t dtype, vec_t x) {
    DTYPES_KNOWN(7); /* nothing is stored in 8 bits */
    return dtype == FLASH_DTYPE_FP16
               ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
               : vec_to_bf16(x);
}

ALWAYS_INLINE void vec_store(int32_t dtype, void *to, vec_t x) {
    if (dtype == FLASH_DTYPE_FP32)
        _mm512_storeu_ps(to, x);
    else
        _mm256_storeu_si256(to, vec_to_halves(dtype, x));
}

ALWAYS_INLINE void vec_store_first(int32_t dtype, void *to, vec_t x, int n) {
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (dtype == FLASH_DTYPE_FP32)
        _mm512_mask_storeu_ps(to, mask, x);
    else
        _mm256_mask_storeu_epi16(to, mask, vec_to_halves(dtype, x));
}

#endif
