/*
 * This file reads rows of Q, K and V, 32 elements at a time, and splits them into bf16 terms.
 */
#ifndef FLASH_KERNELS_CPU_AMX_READ_H
#define FLASH_KERNELS_CPU_AMX_READ_H

#include "cpu/amx/scratch.h"
#include "cpu/vector.h"

#include <immintrin.h>

/* A vector holds 32 elements of 16 bits. */
typedef __m512i words_t;

ALWAYS_INLINE vec_t low_floats(words_t bf16) {
    return vec_from_bf16(_mm512_castsi512_si256(bf16));
}

ALWAYS_INLINE vec_t high_floats(words_t bf16) {
    return vec_from_bf16(_mm512_extracti64x4_epi64(bf16, 1));
}

/* Rounds 32 floats to bf16, to nearest even, and subnormals to zero. */
ALWAYS_INLINE words_t words_from_floats(vec_t low, vec_t high) {
    return (words_t)_mm512_cvtne2ps_pbh(high, low);
}

/* Splits 32 floats into bf16 terms, each the rest that those before it leave. */
ALWAYS_INLINE void split_floats(vec_t low, vec_t high, const int32_t terms, words_t *split) {
    split[0] = words_from_floats(low, high);
    UNROLL for (int i = 1; i < terms; i++) {
        low = vec_sub(low, low_floats(split[i - 1]));
        high = vec_sub(high, high_floats(split[i - 1]));
        split[i] = words_from_floats(low, high);
    }
}

ALWAYS_INLINE void split_words(int32_t dtype, words_t x, words_t *split) {
    DTYPES_KNOWN(7); /* the family has rows of 16 bits only */
    if (dtype == FLASH_DTYPE_BF16)
        split[0] = x;
    else
        split_floats(_mm512_cvtph_ps(_mm512_castsi512_si256(x)),
                     _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), 2, split);
}

/* Returns a mask of the elements column ... column + 31 that a row of d elements has. */
ALWAYS_INLINE __mmask32 present(int64_t column, int64_t d) {
    return d - column >= AMX_SQUARE ? 0xffffffff : (1u << (d - column)) - 1;
}

/* ---- Reading ---- */

/* This is how rows are read, and what was seen. Infinity and NaN are rare: rows of 16 bits are read
 * as if there were none, and once more, with care, where needs_care() says that there are some.
 * Rows of fp32 are always read with care. */
typedef struct amx_reader {
    int32_t dtype;
    int32_t terms;
    int64_t d;
    bool careful;    /* infinity and NaN become zeros, and set the row's bit of `bad` */
    words_t largest; /* largest magnitudes read without care */
    uint32_t bad;
} amx_reader_t;

ALWAYS_INLINE amx_reader_t amx_reader(const amx_scratch_t *t, int32_t dtype, bool careful) {
    const amx_reader_t reader = {dtype,   amx_terms_of(dtype),    t->d,
                                 careful, _mm512_setzero_si512(), 0};
    return reader;
}

ALWAYS_INLINE words_t magnitudes(words_t x) {
    return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
}

ALWAYS_INLINE __mmask32 not_finite(int32_t dtype, words_t magnitude) {
    const words_t infinity = _mm512_set1_epi16((int16_t)dtype_exponent_bits(dtype));
    return _mm512_cmpge_epi16_mask(magnitude, infinity);
}

ALWAYS_INLINE bool needs_care(const amx_reader_t *reader) {
    return not_finite(reader->dtype, reader->largest) != 0;
}

/* Reads 16 elements of row i of fp32, those of the mask. What rounds to infinity in bf16, or is
 * infinity or NaN, becomes zero and sets the row's bit. */
ALWAYS_INLINE vec_t read_fp32(amx_reader_t *reader, const void *from, __mmask16 mask, int64_t i) {
    const __m512i largest = _mm512_set1_epi32(0x7f7f7fff); /* the last to round to a finite bf16 */
    const vec_t x = _mm512_maskz_loadu_ps(mask, from);
    const __m512i magnitude =
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    const __mmask16 good = _mm512_cmple_epi32_mask(magnitude, largest);
    reader->bad |= (uint32_t)(good != 0xffff) << i;
    return _mm512_maskz_mov_ps(good, x);
}

ALWAYS_INLINE void read_fp32_part(amx_reader_t *reader, const char *row, int64_t i, int64_t column,
                                  words_t *split) {
    const __mmask32 mask = row ? present(column, reader->d) : 0;
    const char *from = row + column * (int64_t)sizeof(float);
    const vec_t low = read_fp32(reader, from, (__mmask16)mask, i);
    const vec_t high = read_fp32(reader, from + sizeof(vec_t), (__mmask16)(mask >> VEC_WIDTH), i);
    split_floats(low, high, amx_terms_of(FLASH_DTYPE_FP32), split);
}

/* Reads elements column ... column + 31 of row i as bf16 terms, with zeros beyond d. row NULL
 * stands for zeros, beyond the last row. */
ALWAYS_INLINE void read_part(amx_reader_t *reader, const char *row, int64_t i, int64_t column,
                             words_t *split) {
    words_t x = _mm512_setzero_si512();
    if (reader->dtype == FLASH_DTYPE_FP32) {
        read_fp32_part(reader, row, i, column, split);
        return;
    }
    if (row)
        x = _mm512_maskz_loadu_epi16(present(column, reader->d), (const uint16_t *)row + column);
    if (reader->careful) {
        const __mmask32 bad = not_finite(reader->dtype, magnitudes(x));
        x = _mm512_maskz_mov_epi16(~bad, x);
        reader->bad |= (uint32_t)(bad != 0) << i;
    } else {
        reader->largest = _mm512_max_epi16(reader->largest, magnitudes(x));
    }
    split_words(reader->dtype, x, split);
}

#endif
