/*
 * A word is 32 bits of a packed operand: an fp32 or, where the instruction set has VEC_DOTS_BF16,
 * two bf16 that are neighbours along the contraction.
 */
#ifndef FLASH_KERNELS_CPU_TILED_WORDS_H
#define FLASH_KERNELS_CPU_TILED_WORDS_H

#include "cpu/convert.h"
#include "cpu/tiled/arithmetic.h"
#include "cpu/tiled/latent.h"
#include "cpu/tiled/quant_block.h"
#include "cpu/vector.h"

enum { WORD_ELEMENTS = VEC_DOTS_BF16 ? 2 : 1, WORD_ELEMENT_SIZE = 4 / WORD_ELEMENTS };

static inline int64_t count_words(int64_t n) {
    return (n + WORD_ELEMENTS - 1) / WORD_ELEMENTS;
}

/* Computes c + a b, the elements of a word together. */
ALWAYS_INLINE vec_t words_multiply(vec_t a, vec_t b, vec_t c) {
#if VEC_DOTS_BF16
    return vec_dot_bf16(a, b, c);
#else
    return vec_fma(a, b, c);
#endif
}

/* Loads VEC_WIDTH of a row's d elements, from number `first` on: zeros beyond d. */
ALWAYS_INLINE vec_t load_columns(int32_t dtype, const void *row, int64_t first, int64_t d) {
    if (dtype == FLASH_DTYPE_LATENT_E4M3)
        return first < d ? load_latent(row, first) : vec_zero();
    if (has_quant_blocks(dtype))
        return first < d ? load_quantised(dtype, row, first) : vec_zero();
    const void *from = element_at(row, first, dtype);
    if (d - first >= VEC_WIDTH)
        return vec_load(dtype, from);
    return d > first ? vec_load_first(dtype, from, (int)(d - first)) : vec_zero();
}

/* Loads VEC_WIDTH words of a row's d elements, from number `first` on: zeros beyond d. */
ALWAYS_INLINE vec_t words_load(int32_t dtype, const void *row, int64_t first, int64_t d) {
#if VEC_DOTS_BF16
    const int64_t n = min64(d - first, 2 * VEC_WIDTH);
    return n > 0 ? vec_load_bf16(element_at(row, first, dtype), (int)n) : vec_zero();
#else
    return load_columns(dtype, row, first, d);
#endif
}

/* Makes words across rows: VEC_WIDTH columns from `first` on, and as many after them. */
ALWAYS_INLINE void words_across(int32_t dtype, const void *const rows[WORD_ELEMENTS], int64_t first,
                                int64_t d, vec_t words[WORD_ELEMENTS]) {
    vec_t x[WORD_ELEMENTS];
    for (int i = 0; i < WORD_ELEMENTS; i++)
        x[i] = rows[i] ? words_load(dtype, rows[i], first, d) : vec_zero();
#if VEC_DOTS_BF16
    vec_zip_bf16(x[0], x[1], words);
#else
    words[0] = x[0];
#endif
}

/* Copies n words with the bits of a mask only. */
static inline void words_masked(const float *words, uint32_t mask, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, words + i, sizeof bits);
        bits &= mask;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* Copies n words with only element `kept` of each, and zeros in place of the other. */
static inline void words_keep(const float *words, int64_t kept, int64_t n, float *to) {
    const uint32_t mask = WORD_ELEMENTS == 1 ? 0xffffffff : 0xffffu << 16 * kept;
    words_masked(words, mask, n, to);
}

ALWAYS_INLINE void words_store(void *to, vec_t x) {
#if VEC_DOTS_BF16
    vec_store_bf16(to, x);
#else
    vec_store(FLASH_DTYPE_FP32, to, x);
#endif
}

#endif
