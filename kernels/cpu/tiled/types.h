/*
 * The kernels of a family are compiled as one file, so that what does not depend on the element
 * type of K and V is compiled once. What does is a leaf: a function for each type, of which this
 * type is a constant, behind a function that calls the leaf of the type it is given.
 */
#ifndef FLASH_KERNELS_CPU_TILED_TYPES_H
#define FLASH_KERNELS_CPU_TILED_TYPES_H

#include "common/dtype.h"
#include "cpu/cpu_kernel.h"
#include "cpu/vector.h"

#include <stdbool.h>
#include <stdint.h>

/* The element types of the file's kernels, a bit for each; the generated files define it. */
#ifndef CPU_KERNEL_TYPES
#define CPU_KERNEL_TYPES (VEC_DOTS_BF16 ? 1u << FLASH_DTYPE_BF16 : ~0u)
#endif

ALWAYS_INLINE bool has_kernel_of(const int32_t dtype) {
    return (CPU_KERNEL_TYPES >> dtype & 1) != 0;
}

/* Says whether there are keys that are decoded to fp32. */
ALWAYS_INLINE bool has_encoded_kernel(void) {
    return has_kernel_of(FLASH_DTYPE_LATENT_E4M3) || has_kernel_of(FLASH_DTYPE_Q8_0) ||
           has_kernel_of(FLASH_DTYPE_Q4_0);
}

/* Says whether there are keys that go with Q and O of any type, and are multiplied in fp32. */
ALWAYS_INLINE bool has_kernel_of_any_q(void) {
    return has_kernel_of(FLASH_DTYPE_E4M3) || has_encoded_kernel();
}

/* Says whether keys are of a type, a constant, and false where none are. */
ALWAYS_INLINE bool keys_are(int32_t dtype, const int32_t type) {
    const bool decoded = type == FLASH_DTYPE_FP32 && has_encoded_kernel();
    return dtype == type && (decoded || has_kernel_of(type));
}

/* Says the same of Q or O. Both may be fp32 with keys of any type. */
ALWAYS_INLINE bool rows_are(int32_t dtype, const int32_t type) {
    return dtype == type &&
           (type == FLASH_DTYPE_FP32 || has_kernel_of_any_q() || has_kernel_of(type));
}

/* Says whether tasks of few rows decode keys, of which K has that type. Products of bf16 pairs are
 * for keys of bf16 alone. */
ALWAYS_INLINE bool decodes_keys(const flash_params_t *p, int32_t dtype) {
    return !VEC_DOTS_BF16 && cpu_decodes_keys(dtype, p->v_dtype);
}

#endif
