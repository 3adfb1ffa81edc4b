/*
 * This file makes masks of bits. PTX ISA, "Integer Arithmetic Instructions: bmsk".
 */
#ifndef FLASH_KERNELS_SM90_PTX_BIT_MASK_CUH
#define FLASH_KERNELS_SM90_PTX_BIT_MASK_CUH

#include <stdint.h>

/* Returns the lowest n bits; all from 32 on. */
static __device__ __forceinline__ uint32_t low_bits(uint32_t n) {
    uint32_t mask;
    asm("bmsk.clamp.b32 %0, 0, %1;\n" : "=r"(mask) : "r"(n));
    return mask;
}

#endif
