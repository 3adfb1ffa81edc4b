/*
 * A warp or a warpgroup does these as one. PTX ISA, "Miscellaneous Instructions: setmaxnreg";
 * "elect.sync".
 */
#ifndef FLASH_KERNELS_SM90_PTX_WARPGROUP_CUH
#define FLASH_KERNELS_SM90_PTX_WARPGROUP_CUH

#include <stdint.h>

template <int N> static __device__ __forceinline__ void release_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void acquire_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}

/* Returns a value that all lanes have, in a way by which ptxas sees that it is the same in all:
 * what follows from it stays in uniform registers, and so do loops' bounds. */
static __device__ __forceinline__ int32_t uniform(int32_t value) {
    return __shfl_sync(0xffffffffu, value, 0);
}

/* Says whether this is the elected lane of a converged warp, which is always the same one. */
static __device__ __forceinline__ bool elect_one() {
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(elected));
    return elected != 0;
}

#endif
