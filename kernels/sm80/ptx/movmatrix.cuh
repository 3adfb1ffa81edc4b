/*
 * An 8x8 matrix of 16-bit elements, a register of each lane, is transposed within the warp (PTX
 * ISA, "Warp-level matrix transpose instruction: movmatrix").
 */
#ifndef FLASH_KERNELS_SM80_PTX_MOVMATRIX_CUH
#define FLASH_KERNELS_SM80_PTX_MOVMATRIX_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t movmatrix_trans(uint32_t matrix) {
    uint32_t transposed;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(transposed) : "r"(matrix));
    return transposed;
}

#endif
