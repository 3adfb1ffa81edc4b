/*
 * This file checks what a call with K or V of FLASH_DTYPE_Q8_0 or FLASH_DTYPE_Q4_0 must keep to.
 */
#ifndef FLASH_ARGUMENTS_QUANT_BLOCK_ARGUMENTS_H
#define FLASH_ARGUMENTS_QUANT_BLOCK_ARGUMENTS_H

#include "core/problem.h"

/* Requires of K and V, where they are of these types, whole quantised blocks and rows that do not
 * overlap. dtype is K's. The strides are those that kernels see. */
flash_status_t arguments_check_quant_blocks(int32_t dtype, const flash_params_t *params);

/* Requires of a call that appends new tokens of numbers, and whole quantised blocks of a cache of
 * these types, which only the CPU writes, as it does a cache of two types. */
flash_status_t arguments_check_quant_block_append(const flash_kv_append_args_t *checked,
                                                  bool has_v);

#endif
