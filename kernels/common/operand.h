/*
 * Host and device code take from here what a CUDA kernel's products are computed in, and what
 * follows for K and V. A configuration's dtype is the type of K and V in memory alone.
 */
#ifndef FLASH_KERNELS_COMMON_OPERAND_H
#define FLASH_KERNELS_COMMON_OPERAND_H

#include "common/dtype.h"

/* Returns the type of the operands of both products. Where the configuration does not say it, K and
 * V of e4m3 are converted to fp16, and latent tokens, whose elements then have their scales, to
 * bf16; others are multiplied as they are. */
DTYPE_CONSTANT int32_t flash_operand_dtype(const flash_config_t *c) {
    DTYPES_KNOWN(7);
    return c->operand_dtype != 0                 ? c->operand_dtype
           : c->dtype == FLASH_DTYPE_E4M3        ? (int32_t)FLASH_DTYPE_FP16
           : c->dtype == FLASH_DTYPE_LATENT_E4M3 ? (int32_t)FLASH_DTYPE_BF16
                                                 : c->dtype;
}

/* Says whether K and V are converted before they are multiplied. */
DTYPE_CONSTANT int32_t flash_converts(const flash_config_t *c) {
    return flash_operand_dtype(c) != c->dtype;
}

/* Says whether both products are of e4m3, as Q, K and V are. */
DTYPE_CONSTANT int32_t flash_multiplies_e4m3(const flash_config_t *c) {
    return flash_operand_dtype(c) == FLASH_DTYPE_E4M3;
}

/* Says whether K and V are of latent tokens. */
DTYPE_CONSTANT int32_t flash_is_latent(const flash_config_t *c) {
    return c->dtype == FLASH_DTYPE_LATENT_E4M3;
}

/* Says whether K and V have the scales of the call, by which scores and O are multiplied. */
DTYPE_CONSTANT int32_t flash_has_scales(const flash_config_t *c) {
    return c->dtype == FLASH_DTYPE_E4M3;
}

/* Says whether Q and O are of other types than K and V, which the call names. */
DTYPE_CONSTANT int32_t flash_has_other_q_and_o(const flash_config_t *c) {
    return dtype_size(c->dtype) == 1;
}

#endif
