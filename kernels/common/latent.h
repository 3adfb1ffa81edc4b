/*
 * Host and device code take from here where the columns of a token of FLASH_DTYPE_LATENT_E4M3 lie:
 *
 *     | 512 elements of e4m3 | 4 scales of fp32 | 64 elements of bf16 |
 */
#ifndef FLASH_KERNELS_COMMON_LATENT_H
#define FLASH_KERNELS_COMMON_LATENT_H

#include "common/dtype.h"

enum {
    LATENT_CODES = 512, /* columns of e4m3, which are those of V */
    LATENT_GROUP = 128, /* columns that have a scale together */
    LATENT_ROTARY = 64, /* columns of bf16 */
    LATENT_COLUMNS = LATENT_CODES + LATENT_ROTARY,
    LATENT_SCALES_AT = LATENT_CODES, /* bytes from the beginning of the token */
    LATENT_ROTARY_AT = LATENT_SCALES_AT + LATENT_CODES / LATENT_GROUP * 4,
    LATENT_ALIGNMENT = 16, /* of tokens, on CUDA devices */
    LATENT_LARGEST = 448   /* element of e4m3 */
};

#ifdef __cplusplus
static_assert(LATENT_ROTARY_AT + 2 * LATENT_ROTARY == FLASH_LATENT_TOKEN_BYTES, "a token");
#else
_Static_assert(LATENT_ROTARY_AT + 2 * LATENT_ROTARY == FLASH_LATENT_TOKEN_BYTES, "a token");
#endif

#endif
