/*
 * Kernels decide by these which weights stay, with few instructions: those take as long as
 * products.
 */
#ifndef FLASH_KERNELS_COMMON_DROPOUT_CUH
#define FLASH_KERNELS_COMMON_DROPOUT_CUH

#include "common/dropout.h"

/* Returns a number that all lanes of a warp have, in a uniform register: the compiler does not put
 * there what is read from memory (PTX ISA, "Parallel Synchronization and Communication
 * Instructions: redux.sync"). */
static __device__ __forceinline__ uint32_t uniform_of_warp(uint32_t number) {
    uint32_t uniform;
    asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;\n" : "=r"(uniform) : "r"(number));
    return uniform;
}

/* A weight stays whose 16 bits are at least the threshold, which may be 2^16. */
typedef struct weight_bound {
    uint32_t least; /* of these bits in the upper half of a word */
    uint32_t shift; /* by which the lower half is multiplied, 2^16; 0 if no weight stays */
    bool keeps_some;
} weight_bound_t;

static __device__ __forceinline__ weight_bound_t weight_bound_of(uint32_t threshold) {
    const bool keeps_some = threshold < 1u << 16;
    return weight_bound_t{keeps_some ? threshold << 16 : 1, keeps_some ? 1u << 16 : 0, keeps_some};
}

/* Says whether the weight of the lower or the upper half of a word stays. */
static __device__ __forceinline__ bool weight_stays(uint32_t word, bool is_upper,
                                                    const weight_bound_t &bound) {
    return is_upper ? word >= bound.least && bound.keeps_some : word * bound.shift >= bound.least;
}

#endif
