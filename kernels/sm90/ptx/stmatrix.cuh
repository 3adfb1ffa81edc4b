/*
 * stmatrix stores 8x8 matrices of 16-bit elements from the fragments of mma to shared memory. PTX
 * ISA, "Warp-level matrix store instruction: stmatrix". Lane 8*i + r names row r of matrix i.
 */
#ifndef FLASH_KERNELS_SM90_PTX_STMATRIX_CUH
#define FLASH_KERNELS_SM90_PTX_STMATRIX_CUH

#include <stdint.h>

static __device__ __forceinline__ void stmatrix_x4(uint32_t shared, uint32_t a, uint32_t b,
                                                   uint32_t c, uint32_t d) {
#if __CUDA_ARCH__ >= 900 /* a library for older devices alone has the kernel, and never runs it */
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
#endif
}

#endif
