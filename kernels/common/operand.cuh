/*
 * These are the answers of common/operand.h, as constants of a kernel. Kernels ask them, and never
 * compare the configuration's dtype.
 */
#ifndef FLASH_KERNELS_COMMON_OPERAND_CUH
#define FLASH_KERNELS_COMMON_OPERAND_CUH

#include "common/operand.h"

template <flash_config_t C> constexpr int operand_dtype = flash_operand_dtype(&C);
template <flash_config_t C>
constexpr bool has_half_operands =
    operand_dtype<C> == FLASH_DTYPE_FP16 || operand_dtype<C> == FLASH_DTYPE_BF16;
template <flash_config_t C> constexpr bool converts = flash_converts(&C) != 0;
template <flash_config_t C> constexpr bool multiplies_e4m3 = flash_multiplies_e4m3(&C) != 0;
template <flash_config_t C> constexpr bool is_latent = flash_is_latent(&C) != 0;
template <flash_config_t C> constexpr bool has_scales = flash_has_scales(&C) != 0;
template <flash_config_t C> constexpr bool has_other_q_and_o = flash_has_other_q_and_o(&C) != 0;

#endif
