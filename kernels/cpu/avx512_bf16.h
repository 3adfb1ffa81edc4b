/*
 * The AVX512_BF16 family multiplies pairs of bf16, on processors where that takes no longer than an
 * fp32 multiply-add. The rest is AVX-512's.
 */
#ifndef FLASH_KERNELS_CPU_AVX512_BF16_H
#define FLASH_KERNELS_CPU_AVX512_BF16_H

#include "cpu/avx512_vectors.h"
#include "cpu/tuning.h"

#define VEC_DOTS_BF16             1
#define VEC_STEP_BYTES            AVX512_BF16_STEP_BYTES
#define VEC_SINGLE_ROW_STEP_BYTES 0

/* VDPBF16PS takes subnormal elements for zero (Intel SDM). */
ALWAYS_INLINE vec_t vec_dot_bf16(vec_t a, vec_t b, vec_t c) {
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

ALWAYS_INLINE vec_t vec_load_bf16(const void *from, int n) {
    if (n >= 2 * VEC_WIDTH)
        return _mm512_loadu_ps(from);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((1u << n) - 1, from));
}

ALWAYS_INLINE void vec_zip_bf16(vec_t a, vec_t b, vec_t zipped[2]) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i a_bits = _mm512_castps_si512(a), b_bits = _mm512_castps_si512(b);
    zipped[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a_bits, low, b_bits));
    zipped[1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a_bits, high, b_bits));
}

ALWAYS_INLINE void vec_mix_bf16(vec_t a, vec_t b, vec_t mixed[2]) {
    __m512i a_bits = _mm512_castps_si512(a), b_bits = _mm512_castps_si512(b);
    __asm__("" : "+v"(a_bits), "+v"(b_bits)); /* loaded once: crossing lines costs twice */
    mixed[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(a_bits, b_bits));
    mixed[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(a_bits, b_bits));
}

ALWAYS_INLINE void vec_unmix(vec_t mixed[2]) {
    permute_pair(mixed, _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23));
}

ALWAYS_INLINE void vec_store_bf16(void *to, vec_t x) {
    _mm256_storeu_si256(to, (__m256i)_mm512_cvtneps_pbh(x));
}

ALWAYS_INLINE vec_t vec_bf16_along(vec_t a, vec_t b) {
    return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(b, a));
}

ALWAYS_INLINE vec_t vec_bf16_across(vec_t a, vec_t b) {
    const __m512i turns =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i halves = _mm512_castps_si512(vec_bf16_along(a, b));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(turns, halves));
}

#include "cpu/tiled.h"

ALWAYS_INLINE void avx512_bf16_forward(const flash_config_t *config, const flash_params_t *params,
                                       const cpu_task_t *task, void *scratch) {
    tiled_forward(config, params, task, scratch);
}

#endif
