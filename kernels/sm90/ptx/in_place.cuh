/*
 * These change a register where a condition holds. A select leaves its result in another register,
 * and a tile of scores that passes through selects on several ways takes registers twice. PTX ISA,
 * "Data Movement and Conversion Instructions: mov"; "Comparison and Selection Instructions: setp".
 */
#ifndef FLASH_KERNELS_SM90_PTX_IN_PLACE_CUH
#define FLASH_KERNELS_SM90_PTX_IN_PLACE_CUH

#include <stdint.h>

/* Makes a score -infinity if it is to be hidden. */
static __device__ __forceinline__ void hide_if(bool hidden, float &score) {
    asm volatile("{\n"
                 ".reg .pred hidden;\n"
                 "setp.ne.u32 hidden, %1, 0;\n"
                 "@hidden mov.f32 %0, 0fff800000;\n"
                 "}\n"
                 : "+f"(score)
                 : "r"((uint32_t)hidden));
}

/* Raises a score to a finite bound, unless it is NaN or -infinity. */
static __device__ __forceinline__ void raise_finite(float &score, float bound) {
    asm volatile("{\n"
                 ".reg .pred low, finite;\n"
                 "setp.gt.f32 finite, %0, 0fff800000;\n"
                 "setp.lt.and.f32 low, %0, %1, finite;\n"
                 "@low mov.f32 %0, %1;\n"
                 "}\n"
                 : "+f"(score)
                 : "f"(bound));
}

#endif
