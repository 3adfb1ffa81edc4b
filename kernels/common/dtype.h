/*
 * Element types: what the library knows of each, in one list. Host and device code take a type's
 * facts from here; none of them has a branch that takes a new type for an old one.
 */
#ifndef FLASH_KERNELS_COMMON_DTYPE_H
#define FLASH_KERNELS_COMMON_DTYPE_H

#include "flashattn.h"

#include <stdint.h>

/* X(name, bytes of an element) */
#define FLASH_DTYPES(X)                                                                            \
    X(FP16, 2)                                                                                     \
    X(BF16, 2)                                                                                     \
    X(FP32, 4)

#ifdef __CUDACC__
#define DTYPE_CONSTANT static constexpr __host__ __device__ inline
#else
#define DTYPE_CONSTANT static inline
#endif

/* Bytes of an element; 0 for a number that is no type. */
DTYPE_CONSTANT int32_t dtype_size(int32_t dtype) {
    switch (dtype) {
#define DTYPE_SIZE(name, bytes)                                                                    \
    case FLASH_DTYPE_##name:                                                                       \
        return bytes;
        FLASH_DTYPES(DTYPE_SIZE)
#undef DTYPE_SIZE
    default:
        return 0;
    }
}

#endif
