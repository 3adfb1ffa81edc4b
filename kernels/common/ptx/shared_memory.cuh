/*
 * These are ordinary loads and stores of shared memory by its 32-bit address. PTX ISA, "Data
 * Movement and Conversion Instructions": ld.shared, st.shared.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_SHARED_MEMORY_CUH
#define FLASH_KERNELS_COMMON_PTX_SHARED_MEMORY_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

static __device__ __forceinline__ void shared_store(uint32_t shared, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(shared), "r"(value) : "memory");
}

static __device__ __forceinline__ void shared_store(uint32_t shared, float2 value) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(shared), "f"(value.x), "f"(value.y)
                 : "memory");
}

static __device__ __forceinline__ void shared_store(uint32_t shared, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

/* Loads 8 bits into the lowest bits of the result. */
static __device__ __forceinline__ uint32_t shared_load_8(uint32_t shared) {
    uint32_t value;
    asm volatile("ld.shared.u8 %0, [%1];\n" : "=r"(value) : "r"(shared) : "memory");
    return value;
}

/* Loads 16 bits into the lower half of the result. */
static __device__ __forceinline__ uint32_t shared_load_16(uint32_t shared) {
    uint16_t value;
    asm volatile("ld.shared.b16 %0, [%1];\n" : "=h"(value) : "r"(shared) : "memory");
    return value;
}

static __device__ __forceinline__ uint32_t shared_load_32(uint32_t shared) {
    uint32_t value;
    asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(value) : "r"(shared) : "memory");
    return value;
}

static __device__ __forceinline__ uint4 shared_load(uint32_t shared) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(shared)
                 : "memory");
    return value;
}

static __device__ __forceinline__ float2 shared_load_pair(uint32_t shared) {
    float2 value;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n"
                 : "=f"(value.x), "=f"(value.y)
                 : "r"(shared)
                 : "memory");
    return value;
}

#endif
