/*
 * This list has the 16-bit types, two elements to a register, as PTX names them (PTX ISA, "Types:
 * Alternate Floating-Point Data Formats, Packed Data Types"). Each instruction on such pairs is a
 * deleted template with a specialisation per line below, so that it does not compile for another
 * type.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_PAIR_TYPES_CUH
#define FLASH_KERNELS_COMMON_PTX_PAIR_TYPES_CUH

#include "common/dtype.h"

/* X(type, PTX's name of an element, further arguments) */
#define FLASH_PAIR_TYPES(X, ...)                                                                   \
    X(FLASH_DTYPE_FP16, "f16" __VA_OPT__(, ) __VA_ARGS__)                                          \
    X(FLASH_DTYPE_BF16, "bf16" __VA_OPT__(, ) __VA_ARGS__)

#endif
