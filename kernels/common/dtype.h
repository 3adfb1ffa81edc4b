/*
 * Host and device code take the facts of each element type from this list. No other place has a
 * branch that takes a new type for an old one.
 *
 * A new type gets an enumerator in flashattn.h and a line below. The compiler asks for everything
 * else: DTYPES_KNOWN() stops it at each chain of conditions that does not know the type, and
 * instructions and conversions of device code are templates without a general case
 * (common/dtype.cuh, common/ptx/, sm80/ptx/mma.cuh, sm90/ptx/wgmma.cuh). The driver's name of the
 * type is in src/cuda/tma/tensor_map.c, and codegen/facts.py says which families have it.
 */
#ifndef FLASH_KERNELS_COMMON_DTYPE_H
#define FLASH_KERNELS_COMMON_DTYPE_H

#include "flashattn.h"

#include <stdint.h>

/* X(name, bytes of an element, bits that are all set in infinity and NaN and in nothing else). The
 * bits are the exponent, for E4M3, which has no infinity, also the mantissa. An element of
 * LATENT_E4M3 is a byte of a token (common/latent.h), and one of Q8_0 and Q4_0 a byte of a row
 * (common/quant_block.h), whatever it means. */
#define FLASH_DTYPES(X)                                                                            \
    X(FP16, 2, 0x7c00)                                                                             \
    X(BF16, 2, 0x7f80)                                                                             \
    X(FP32, 4, 0x7f800000)                                                                         \
    X(E4M3, 1, 0x7f)                                                                               \
    X(LATENT_E4M3, 1, 0)                                                                           \
    X(Q8_0, 1, 0)                                                                                  \
    X(Q4_0, 1, 0)

#define COUNT_DTYPE(name, bytes, exponent) +1
enum { N_DTYPES = FLASH_DTYPES(COUNT_DTYPE) };
#undef COUNT_DTYPE

#ifdef __CUDACC__
#define DTYPE_CONSTANT static constexpr __host__ __device__ inline
#else
#define DTYPE_CONSTANT static inline __attribute__((always_inline))
#endif

/* DTYPES_KNOWN() stands before a chain of conditions on a type that ends with an else. A new type
 * stops here, gets its own case, and n is raised. */
#ifdef __cplusplus
#define DTYPES_KNOWN(n) static_assert(N_DTYPES == (n), "a new element type needs a case here")
#else
#define DTYPES_KNOWN(n) _Static_assert(N_DTYPES == (n), "a new element type needs a case here")
#endif

/* Returns the bytes of an element; 0 for a number that is no type. */
DTYPE_CONSTANT int32_t dtype_size(int32_t dtype) {
#define DTYPE_SIZE(name, bytes, exponent) dtype == FLASH_DTYPE_##name ? bytes:
    return FLASH_DTYPES(DTYPE_SIZE) 0;
#undef DTYPE_SIZE
}

/* Returns the bits of an element that are all set if it is not finite; 0 if dtype is no type. */
DTYPE_CONSTANT uint32_t dtype_exponent_bits(int32_t dtype) {
#define DTYPE_EXPONENT_BITS(name, bytes, exponent) dtype == FLASH_DTYPE_##name ? exponent:
    return FLASH_DTYPES(DTYPE_EXPONENT_BITS) 0;
#undef DTYPE_EXPONENT_BITS
}

#endif
