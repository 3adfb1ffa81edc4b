/*
 * Fragments of mma's operands are loaded from shared memory to registers. A step is 16 columns of
 * the contraction: of d_head in QK^T, of B_c in PV.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_FRAGMENTS_CUH
#define FLASH_KERNELS_SM80_FORWARD_FRAGMENTS_CUH

#include "common/ptx/ldmatrix.cuh"
#include "sm80/forward/layout.cuh"

template <flash_config_t C> struct q_fragments { uint32_t r[m_tiles<C>][4]; };

template <flash_config_t C> struct k_fragments {
    uint32_t r[key_steps<C>][4]; /* of 16 keys each */
};

template <flash_config_t C> struct v_fragments {
    uint32_t r[head_steps<C>][4]; /* of 16 columns of V each */
};

template <flash_config_t C>
static __device__ __forceinline__ void load_q(q_fragments<C> &q, const lane_address<C> &at,
                                              int step) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
        ldmatrix_x4(q.r[m], tile_address<C>(at, m, step));
}

template <flash_config_t C>
static __device__ __forceinline__ void load_k(k_fragments<C> &k, const lane_address<C> &at,
                                              int step) {
#pragma unroll
    for (int n = 0; n < key_steps<C>; ++n)
        ldmatrix_x4(k.r[n], tile_address<C>(at, n, step));
}

template <flash_config_t C>
static __device__ __forceinline__ void load_v(v_fragments<C> &v, const lane_address<C> &at,
                                              int step) {
#pragma unroll
    for (int n = 0; n < head_steps<C>; ++n)
        ldmatrix_x4_trans(v.r[n], tile_address<C>(at, step, n));
}

#endif
