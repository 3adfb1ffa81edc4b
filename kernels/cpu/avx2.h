/*
 * This is the AVX2 family (with FMA and F16C): tiled.h's vector primitives, and the kernel.
 */
#ifndef FLASH_KERNELS_CPU_AVX2_H
#define FLASH_KERNELS_CPU_AVX2_H

#include "common/quant_block.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"
#include "flashattn.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef __m256 vec_t;

/* A micro-kernel of 6 x 2 accumulators, a row of B and an element of A takes 15 of 16 registers. */
#define VEC_WIDTH                 8
#define TILE_ROWS                 6
#define TILE_VECS                 2
#define DOT_ROWS                  4
#define VEC_SPLITS_BF16           1
#define VEC_DOTS_BF16             0
#define VEC_STEP_BYTES            AVX2_STEP_BYTES
#define VEC_SINGLE_ROW_STEP_BYTES 0

/* ---- Arithmetic ---- */

ALWAYS_INLINE vec_t vec_zero(void) {
    return _mm256_setzero_ps();
}

ALWAYS_INLINE vec_t vec_set1(float x) {
    return _mm256_set1_ps(x);
}

ALWAYS_INLINE vec_t vec_add(vec_t a, vec_t b) {
    return _mm256_add_ps(a, b);
}

ALWAYS_INLINE vec_t vec_sub(vec_t a, vec_t b) {
    return _mm256_sub_ps(a, b);
}

ALWAYS_INLINE vec_t vec_mul(vec_t a, vec_t b) {
    return _mm256_mul_ps(a, b);
}

ALWAYS_INLINE vec_t vec_div(vec_t a, vec_t b) {
    return _mm256_div_ps(a, b);
}

ALWAYS_INLINE vec_t vec_fma(vec_t a, vec_t b, vec_t c) {
    return _mm256_fmadd_ps(a, b, c);
}

ALWAYS_INLINE vec_t vec_max(vec_t a, vec_t b) {
    return _mm256_max_ps(a, b);
}

ALWAYS_INLINE vec_t vec_abs(vec_t x) {
    return _mm256_andnot_ps(vec_set1(-0.0f), x);
}

ALWAYS_INLINE vec_t vec_select_less(vec_t a, vec_t b, vec_t x, vec_t y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

ALWAYS_INLINE bool vec_any_less(vec_t a, vec_t b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0;
}

/* Returns 2^n of a whole number n, -126 ... 127. */
ALWAYS_INLINE vec_t exp2_whole(vec_t n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

/* Computes 2^x = 2^floor(x) * 2^r by a minimax polynomial of 2^r on [0, 1) with p(0) = 1, relative
 * error 1.5e-7. Results that would be subnormal are 0, since subnormal numbers slow products down;
 * those beyond 2^127 are 2^127. The order of the operands of min and max lets NaN pass. */
ALWAYS_INLINE vec_t vec_exp2(vec_t x) {
    const vec_t lowest = vec_set1(-125);
    const vec_t clamped = _mm256_min_ps(vec_set1(127), _mm256_max_ps(lowest, x));
    const vec_t n = _mm256_floor_ps(clamped);
    const vec_t r = vec_sub(clamped, n);
    vec_t p = vec_set1(0x1.e97516p-10f);
    p = vec_fma(p, r, vec_set1(0x1.27784ep-7f));
    p = vec_fma(p, r, vec_set1(0x1.c91ce8p-5f));
    p = vec_fma(p, r, vec_set1(0x1.ebdb56p-3f));
    p = vec_fma(p, r, vec_set1(0x1.62e4bap-1f));
    p = vec_fma(p, r, vec_set1(1));
    const vec_t normal = _mm256_cmp_ps(x, lowest, _CMP_NLT_UQ);
    return _mm256_and_ps(normal, vec_mul(p, exp2_whole(n)));
}

/* ---- Dropout ---- */

typedef __m256i calls_t;

#define CALLS          4
#define CALLS_TOGETHER 2

ALWAYS_INLINE vec_t vec_keep(vec_t x, uint32_t bits) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i kept = _mm256_and_si256(_mm256_set1_epi32((int32_t)bits), lanes);
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(kept, lanes)));
}

ALWAYS_INLINE calls_t calls_set1(uint32_t x) {
    return _mm256_set1_epi64x(x);
}

ALWAYS_INLINE calls_t calls_load(const uint64_t *from) {
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

ALWAYS_INLINE calls_t calls_add(calls_t a, calls_t b) {
    return _mm256_add_epi64(a, b);
}

ALWAYS_INLINE calls_t calls_multiply(calls_t a, calls_t b) {
    return _mm256_mul_epu32(a, b);
}

ALWAYS_INLINE calls_t calls_mix(calls_t a, calls_t b, calls_t c) {
    return _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(b, c));
}

ALWAYS_INLINE uint32_t calls_kept(calls_t low, calls_t high, uint32_t threshold) {
    /* lower halves of two lanes of each, in both 128-bit lanes */
    const __m256i words = _mm256_castps_si256(
        _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m256i least = _mm256_set1_epi16((int16_t)threshold);
    const __m256i kept = _mm256_cmpeq_epi16(_mm256_max_epu16(ordered, least), ordered);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
    return (uint32_t)_mm_movemask_epi8(bytes);
}

/* ---- Across lanes ---- */

ALWAYS_INLINE float vec_reduce_add(vec_t x) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

ALWAYS_INLINE float vec_reduce_max(vec_t x) {
    __m128 largest = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
    return _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
}

/* Returns [a0 + a2, b0 + b2, a1 + a3, b1 + b3] of each half. */
ALWAYS_INLINE vec_t add_pairs(vec_t a, vec_t b) {
    return vec_add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}

ALWAYS_INLINE vec_t unpacklo_pairs(vec_t a, vec_t b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

ALWAYS_INLINE vec_t unpackhi_pairs(vec_t a, vec_t b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

ALWAYS_INLINE void vec_sum4(vec_t a, vec_t b, vec_t c, vec_t d, float *sums) {
    const vec_t ab = add_pairs(a, b), cd = add_pairs(c, d);
    const vec_t halves = vec_add(unpacklo_pairs(ab, cd), unpackhi_pairs(ab, cd));
    _mm_storeu_ps(sums,
                  _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}

/* Transposes the 4 x 4 squares of four rows: row j of the result has column 4 i + j in half i. */
ALWAYS_INLINE void transpose_halves(vec_t r[4]) {
    const vec_t t0 = _mm256_unpacklo_ps(r[0], r[1]), t1 = _mm256_unpackhi_ps(r[0], r[1]);
    const vec_t t2 = _mm256_unpacklo_ps(r[2], r[3]), t3 = _mm256_unpackhi_ps(r[2], r[3]);
    r[0] = unpacklo_pairs(t0, t2);
    r[1] = unpackhi_pairs(t0, t2);
    r[2] = unpacklo_pairs(t1, t3);
    r[3] = unpackhi_pairs(t1, t3);
}

ALWAYS_INLINE void vec_transpose(vec_t r[VEC_WIDTH]) {
    transpose_halves(r);
    transpose_halves(r + 4);
    UNROLL for (int j = 0; j < 4; j++) {
        const vec_t low = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
        r[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
        r[j] = low;
    }
}

/* ---- Memory ---- */

/* Returns elements of e4m3 as fp16: their bits with a zero behind the sign, since fp16's exponent
 * is one bit longer. NaN stays NaN. */
ALWAYS_INLINE __m128i halves_of_e4m3(__m128i x) {
    const __m128i words = _mm_slli_epi16(_mm_cvtepi8_epi16(x), 7), all = _mm_set1_epi16(0x3f80);
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(words, all), all);
    return _mm_or_si128(_mm_and_si128(words, _mm_set1_epi16((int16_t)0xbf80)), nan);
}

ALWAYS_INLINE void vec_load_e4m3(const void *from, vec_t pair[2]) {
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), 7);
    const __m256i all = _mm256_set1_epi16(0x3f80);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(words, all), all);
    const __m256i numbers = _mm256_and_si256(words, _mm256_set1_epi16((int16_t)0xbf80));
    const __m256i halves = _mm256_or_si256(numbers, nan);
    pair[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    pair[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

ALWAYS_INLINE vec_t vec_load_bytes(const void *from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)));
}

ALWAYS_INLINE vec_t vec_load_nibbles(const void *from, bool high) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from));
    const __m256i codes =
        high ? _mm256_srli_epi32(bytes, 4) : _mm256_and_si256(bytes, _mm256_set1_epi32(0xf));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(Q4_0_ZERO)));
}

ALWAYS_INLINE vec_t vec_set1_fp16(uint16_t half) {
    return _mm256_cvtph_ps(_mm_set1_epi16((int16_t)half));
}

ALWAYS_INLINE vec_t vec_from_halves(int32_t dtype, __m128i x) {
    DTYPES_KNOWN(7); /* types of 8 bits have no halves */
    if (dtype == FLASH_DTYPE_FP16)
        return _mm256_cvtph_ps(x);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
ALWAYS_INLINE __m128i vec_to_bf16(vec_t x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half_ulp = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_add_epi32(bits, half_ulp), quiet, nan);
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

ALWAYS_INLINE __m128i vec_to_halves(int32_t dtype, vec_t x) {
    DTYPES_KNOWN(7); /* nothing is stored in 8 bits */
    return dtype == FLASH_DTYPE_FP16
               ? _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
               : vec_to_bf16(x);
}

ALWAYS_INLINE __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ALWAYS_INLINE vec_t vec_load(int32_t dtype, const void *from) {
    if (dtype == FLASH_DTYPE_FP32)
        return _mm256_loadu_ps(from);
    if (dtype == FLASH_DTYPE_E4M3)
        return _mm256_cvtph_ps(halves_of_e4m3(_mm_loadl_epi64(from)));
    return vec_from_halves(dtype, _mm_loadu_si128(from));
}

ALWAYS_INLINE vec_t vec_load_first(int32_t dtype, const void *from, int n) {
    if (dtype == FLASH_DTYPE_FP32)
        return _mm256_maskload_ps(from, first_lanes(n));
    if (dtype == FLASH_DTYPE_E4M3) {
        uint8_t elements[VEC_WIDTH] = {0};
        memcpy(elements, from, (size_t)n);
        return vec_load(dtype, elements);
    }
    uint16_t halves[VEC_WIDTH] = {0};
    memcpy(halves, from, (size_t)n * sizeof halves[0]);
    return vec_from_halves(dtype, _mm_loadu_si128((const __m128i *)halves));
}

ALWAYS_INLINE void vec_split_bf16(const void *from, vec_t pair[2]) {
    const __m256i words = _mm256_loadu_si256(from);
    const __m256i odd = _mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000));
    pair[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    pair[1] = _mm256_castsi256_ps(odd);
}

ALWAYS_INLINE void vec_join(vec_t pair[2]) {
    const vec_t low = _mm256_unpacklo_ps(pair[0], pair[1]);
    const vec_t high = _mm256_unpackhi_ps(pair[0], pair[1]);
    pair[0] = _mm256_permute2f128_ps(low, high, 0x20);
    pair[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

ALWAYS_INLINE void vec_store(int32_t dtype, void *to, vec_t x) {
    if (dtype == FLASH_DTYPE_FP32)
        _mm256_storeu_ps(to, x);
    else
        _mm_storeu_si128(to, vec_to_halves(dtype, x));
}

ALWAYS_INLINE void vec_store_first(int32_t dtype, void *to, vec_t x, int n) {
    if (dtype == FLASH_DTYPE_FP32) {
        _mm256_maskstore_ps(to, first_lanes(n), x);
        return;
    }
    uint16_t halves[VEC_WIDTH];
    _mm_storeu_si128((__m128i *)halves, vec_to_halves(dtype, x));
    memcpy(to, halves, (size_t)n * sizeof halves[0]);
}

#include "cpu/tiled.h"

ALWAYS_INLINE void avx2_forward(const flash_config_t *config, const flash_params_t *params,
                                const cpu_task_t *task, void *scratch) {
    tiled_forward(config, params, task, scratch);
}

#endif
