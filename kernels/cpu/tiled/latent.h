/*
 * This file decodes tokens of LATENT_E4M3, each column in fp32: scale * element, rounded once.
 * Unlike those of e4m3 (tiled/e4m3.h), scales differ from token to token and from column to column,
 * so that they cannot go into Q and O.
 */
#ifndef FLASH_KERNELS_CPU_TILED_LATENT_H
#define FLASH_KERNELS_CPU_TILED_LATENT_H

#include "cpu/convert.h"
#include "cpu/vector.h"

_Static_assert(LATENT_GROUP % VEC_WIDTH == 0 && LATENT_ROTARY % VEC_WIDTH == 0,
               "a vector's columns are of one type and have one scale");

/* Loads the VEC_WIDTH columns of a token from number `column`, a multiple of VEC_WIDTH, on. */
ALWAYS_INLINE vec_t load_latent(const char *token, int64_t column) {
    if (column >= LATENT_CODES)
        return vec_load(FLASH_DTYPE_BF16, token + LATENT_ROTARY_AT + 2 * (column - LATENT_CODES));
    const vec_t element = vec_mul(vec_load(FLASH_DTYPE_E4M3, token + column), vec_set1(E4M3_UNIT));
    return vec_mul(element, vec_set1(latent_scale(token, column)));
}

/* Decodes the columns of a token that share a scale, from number `column` on. */
ALWAYS_INLINE void decode_latent_group(const char *token, int64_t column, float *to) {
    const vec_t unit = vec_set1(E4M3_UNIT), scale = vec_set1(latent_scale(token, column));
    UNROLL for (int i = 0; i < LATENT_GROUP; i += 2 * VEC_WIDTH) {
        vec_t pair[2];
        vec_load_e4m3(token + column + i, pair);
        for (int j = 0; j < 2; j++)
            vec_store(FLASH_DTYPE_FP32, to + column + i + j * VEC_WIDTH,
                      vec_mul(vec_mul(pair[j], unit), scale));
    }
}

/* Decodes a token to LATENT_COLUMNS numbers. */
ALWAYS_INLINE void decode_latent(const char *token, float *to) {
    for (int64_t column = 0; column < LATENT_CODES; column += LATENT_GROUP)
        decode_latent_group(token, column, to);
    for (int64_t column = LATENT_CODES; column < LATENT_COLUMNS; column += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, to + column, load_latent(token, column));
}

#endif
