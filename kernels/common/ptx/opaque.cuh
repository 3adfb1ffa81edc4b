/*
 * Empty instructions seem to change a value, so that the compiler neither moves nor splits its
 * computation. Otherwise it replaces one register kept over the main loop by several, and by
 * integer instructions; or it moves a computation into a branch.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_OPAQUE_CUH
#define FLASH_KERNELS_COMMON_PTX_OPAQUE_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t opaque(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

static __device__ __forceinline__ const char *opaque(const char *pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

static __device__ __forceinline__ float opaque(float value) {
    asm volatile("" : "+f"(value));
    return value;
}

#endif
