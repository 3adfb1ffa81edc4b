/*
 * This file checks what a call with K and V of FLASH_DTYPE_LATENT_E4M3 must keep to.
 */
#ifndef FLASH_ARGUMENTS_LATENT_ARGUMENTS_H
#define FLASH_ARGUMENTS_LATENT_ARGUMENTS_H

#include "core/problem.h"

/* Requires the head dimensions of a latent token, a V that is K, and tokens that do not overlap,
 * where K and V are of that type. The strides are those that kernels see. */
flash_status_t arguments_check_latent(int32_t dtype, const flash_params_t *params);

/* Requires of a call that appends to a cache of that type new tokens of numbers, all columns of K
 * without a V, and no rotary embedding. */
flash_status_t arguments_check_latent_append(const flash_kv_append_args_t *checked, bool has_v);

#endif
