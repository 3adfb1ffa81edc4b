/*
 * A warp issues in order, and the multi-function unit takes long to answer. So what is done with
 * the exponentials of a chunk, their sums and their rounding, comes beside the next chunk: ptxas
 * would put it a few instructions behind each exponential, and the warp would wait for every one.
 */
#ifndef FLASH_KERNELS_SM90_FP8_EXPONENTIALS_CUH
#define FLASH_KERNELS_SM90_FP8_EXPONENTIALS_CUH

#include "common/ptx/math.cuh"
#include "sm90/fp8/products.cuh"
#include "sm90/ptx/order.cuh"
#include "sm90/softmax/softmax.cuh"

/* A chunk is the accumulators of S that become one fragment of P. */
constexpr int chunk_registers = 16;

/* Turns a chunk of S into P, relative to references in the exponent of 2. */
template <flash_config_t C>
static __device__ __forceinline__ void exponentiate_chunk(score_tile<C> &s, int chunk,
                                                          const softmax_units<C> &unit,
                                                          const float (&reference)[2]) {
#pragma unroll
    for (int i = 0; i < chunk_registers; ++i) {
        float &x = s.s[chunk * chunk_registers + i];
        x = exp2_approx(fmaf(x, log2_unit(unit, i / 2 % 2), -reference[i / 2 % 2]));
    }
}

/* Turns a chunk of S into arguments of exponentials, relative to references in the exponent of 2.
 */
template <flash_config_t C>
static __device__ __forceinline__ void scale_chunk(score_tile<C> &s, int chunk,
                                                   const softmax_units<C> &unit,
                                                   const float (&reference)[2]) {
#pragma unroll
    for (int i = 0; i < chunk_registers; ++i) {
        float &x = s.s[chunk * chunk_registers + i];
        x = fmaf(x, log2_unit(unit, i / 2 % 2), -reference[i / 2 % 2]);
    }
}

/* Turns a scaled chunk into P. */
template <flash_config_t C>
static __device__ __forceinline__ void exponentiate_scaled(score_tile<C> &s, int chunk) {
#pragma unroll
    for (int i = 0; i < chunk_registers; ++i) {
        float &x = s.s[chunk * chunk_registers + i];
        x = exp2_approx(x);
    }
}

/* Adds a chunk of P to the sums. */
template <flash_config_t C>
static __device__ __forceinline__ void add_chunk(softmax_state_t &state, const score_tile<C> &s,
                                                 int chunk) {
#pragma unroll
    for (int i = 0; i < chunk_registers; i += 2) {
        const float *x = &s.s[chunk * chunk_registers + i];
        state.sum[i / 2 % 2] += x[0] + x[1];
    }
}

#endif
