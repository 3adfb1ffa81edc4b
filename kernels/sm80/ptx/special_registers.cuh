/*
 * Special registers are read again at each call (PTX ISA, "Special Registers": %ctaid).
 */
#ifndef FLASH_KERNELS_SM80_PTX_SPECIAL_REGISTERS_CUH
#define FLASH_KERNELS_SM80_PTX_SPECIAL_REGISTERS_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t block_number() {
    uint32_t number;
    asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(number));
    return number;
}

#endif
