/*
 * ldmatrix loads 8x8 matrices of 16-bit elements from shared memory into fragments of mma (PTX ISA,
 * "Warp-level matrix load instruction: ldmatrix"). Lane 8*i + r has the address of row r of matrix
 * i.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_LDMATRIX_CUH
#define FLASH_KERNELS_COMMON_PTX_LDMATRIX_CUH

#include <stdint.h>

static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&fragment)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared)
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&fragment)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared)
                 : "memory");
}

#endif
