/*
 * A descriptor describes an operand in shared memory to wgmma: panels of 128 bytes per row,
 * swizzled as TMA writes them. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: Matrix
 * Descriptor": bits 0-13 address, 16-29 leading and 32-45 stride byte offset, each / 16; bits 62-63
 * swizzle, 1 = 128 bytes.
 */
#ifndef FLASH_KERNELS_SM90_PTX_DESCRIPTOR_CUH
#define FLASH_KERNELS_SM90_PTX_DESCRIPTOR_CUH

#include <stdint.h>

/* The stride is eight rows of a panel, the period of the swizzle; it never differs. */
constexpr uint32_t descriptor_high = 1024 >> 4 | 1u << 30;

/* Returns the half of a descriptor that differs from operand to operand. leading_bytes lead from
 * panel to panel along N; they do not matter where the operand is K-major. */
static __device__ __forceinline__ uint32_t descriptor_low(uint32_t shared, uint32_t leading_bytes) {
    return shared >> 4 | (leading_bytes >> 4) << 16;
}

/* Returns the descriptor of the operand that begins `bytes` after the one of `low`. */
static __device__ __forceinline__ uint64_t descriptor(uint32_t low, uint32_t bytes) {
    return (uint64_t)descriptor_high << 32 | (low + (bytes >> 4));
}

#endif
