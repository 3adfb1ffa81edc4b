/*
 * Element types: what the library knows of each, in one list. Host and device code take a type's
 * facts from here; none of them has a branch that takes a new type for an old one.
 *
 * A new type gets an enumerator in flashattn.h and a line below. What else it needs, the compiler
 * then asks for: C code tells types apart by DTYPE_SWITCH without a default, so that -Wswitch names
 * each place that does not know the type; device code by templates that are only declared
 * (common/dtype.cuh, common/ptx/, sm80/ptx/mma.cuh, sm90/ptx/wgmma.cuh), so that a kernel of a type
 * without an entry does not compile. Which families have the type is said in codegen/facts.py.
 */
#ifndef FLASH_KERNELS_COMMON_DTYPE_H
#define FLASH_KERNELS_COMMON_DTYPE_H

#include "flashattn.h"

#include <stdint.h>

/* X(name, bytes of an element, bits of the exponent, all set in infinity and NaN) */
#define FLASH_DTYPES(X)                                                                            \
    X(FP16, 2, 0x7c00)                                                                             \
    X(BF16, 2, 0x7f80)                                                                             \
    X(FP32, 4, 0x7f800000)

/* How many they are. */
#define COUNT_DTYPE(name, bytes, exponent) +1
enum { N_DTYPES = FLASH_DTYPES(COUNT_DTYPE) };
#undef COUNT_DTYPE

#ifdef __CUDACC__
#define DTYPE_CONSTANT static constexpr __host__ __device__ inline
#else
#define DTYPE_CONSTANT static inline
#endif

/* A switch over all types, for code that has no answer for others: arguments and configurations are
 * checked before. DTYPE_NEVER comes after it. */
#define DTYPE_SWITCH(dtype) switch ((enum flash_dtype)(dtype))
#define DTYPE_NEVER()       __builtin_unreachable()

/* Bytes of an element; 0 for a number that is no type. */
DTYPE_CONSTANT int32_t dtype_size(int32_t dtype) {
    switch (dtype) {
#define DTYPE_SIZE(name, bytes, exponent)                                                          \
    case FLASH_DTYPE_##name:                                                                       \
        return bytes;
        FLASH_DTYPES(DTYPE_SIZE)
#undef DTYPE_SIZE
    default:
        return 0;
    }
}

/* Bits of an element's exponent, all set in what is not finite; 0 for a number that is no type. */
DTYPE_CONSTANT uint32_t dtype_exponent_bits(int32_t dtype) {
    switch (dtype) {
#define DTYPE_EXPONENT_BITS(name, bytes, exponent)                                                 \
    case FLASH_DTYPE_##name:                                                                       \
        return exponent;
        FLASH_DTYPES(DTYPE_EXPONENT_BITS)
#undef DTYPE_EXPONENT_BITS
    default:
        return 0;
    }
}

#endif
