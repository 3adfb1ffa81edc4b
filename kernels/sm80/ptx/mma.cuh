/*
 * A warp computes d[16x8] += a[16x16] * b[16x8] of 16-bit operands in fp32 accumulators. PTX ISA,
 * "Matrix Fragments for mma.m16n8k16 with floating point type". With g = lane / 4 and t = lane % 4,
 * a thread holds columns 2t, 2t + 1 of rows g (d[0], d[1]) and g + 8 (d[2], d[3]).
 */
#ifndef FLASH_KERNELS_SM80_PTX_MMA_CUH
#define FLASH_KERNELS_SM80_PTX_MMA_CUH

#include "common/ptx/pair_types.cuh"

#include <stdint.h>

template <int DTYPE>
static __device__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) = delete;

#define SM80_MMA(DTYPE, TYPE)                                                                      \
    template <>                                                                                    \
    __device__ __forceinline__ void mma_m16n8k16<DTYPE>(float(&d)[4], const uint32_t(&a)[4],       \
                                                        uint32_t b0, uint32_t b1) {                \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, "       \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"                                      \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }
FLASH_PAIR_TYPES(SM80_MMA)
#undef SM80_MMA

#endif
