/*
 * Values that the compiler may neither rearrange nor take apart: empty instructions that seem to
 * change them. Left to itself it trades one register kept over the main loop for several, and for
 * integer instructions inside.
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

#endif
