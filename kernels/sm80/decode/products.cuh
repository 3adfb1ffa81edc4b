/*
 * One warp computes the two products of a step over B_c keys: S^T = K Q^T and O^T += V^T P^T. In
 * the layouts below g = lane / 4 and t = lane % 4.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_PRODUCTS_CUH
#define FLASH_KERNELS_SM80_DECODE_PRODUCTS_CUH

#include "sm80/decode/load.cuh"
#include "sm80/decode/queries.cuh"
#include "sm80/ptx/mma.cuh"

/* of[n][m][2 * half + j]: key m * 16 + half * 8 + g, row n * 8 + 2t + j. */
template <flash_config_t C> struct score_tile { float of[row_groups<C>][key_tiles<C>][4]; };

/* P as the second operand: pair[n][m][half] has keys m * 16 + half * 8 + 2t, + 1 of row g. */
template <flash_config_t C> struct weight_fragments {
    uint32_t pair[row_groups<C>][key_tiles<C>][2];
};

/* of[n][d][2 * half + j]: column output_column(d, half) of O, row n * 8 + 2t + j. */
template <flash_config_t C> struct output_tile { float of[row_groups<C>][head_tiles<C>][4]; };

/* Returns the address of the load-th ldmatrix over 16 keys; the first one is at `address`. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t load_address(uint32_t address, int key_tile, int load) {
    return (address ^ (load % 4 * 2 * DECODE_CHUNK_BYTES)) + load / 4 * panel_bytes<C> +
           key_tile * 16 / line_rows<C> * DECODE_LINE_BYTES;
}

/* Returns the address for A of S^T: keys down a tile, columns across. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t k_address(uint32_t slot, int key_tile, int load) {
    const int lane = threadIdx.x % DECODE_WARP_THREADS;
    return load_address<C>(slot + chunk_offset<C>(lane % 16, lane / 16), key_tile, load);
}

/* Returns the address for A of O^T, which ldmatrix transposes: columns down a tile, keys across. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t v_address(uint32_t slot, int key_tile, int load) {
    const int lane = threadIdx.x % DECODE_WARP_THREADS;
    return load_address<C>(slot + chunk_offset<C>(lane / 16 * 8 + lane % 8, lane / 8 % 2), key_tile,
                           load);
}

template <flash_config_t C>
static __device__ __forceinline__ void multiply_q_k(score_tile<C> &s, const query_fragments<C> &q,
                                                    uint32_t slot) {
#pragma unroll
    for (int m = 0; m < key_tiles<C>; ++m) {
#pragma unroll
        for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s.of[n][m][i] = 0.0f;
#pragma unroll
        for (int load = 0; load < head_loads<C>; ++load) {
            const key_fragments<C> k = load_key_fragments<C>(k_address<C>(slot, m, load));
#pragma unroll
            for (int tile = 0; tile < load_tiles<C>; ++tile)
#pragma unroll
                for (int n = 0; n < row_groups<C>; ++n) {
                    const uint32_t(&pair)[2] = q.pair[n][load * load_tiles<C> + tile];
                    mma_m16n8k16<operand_dtype<C>>(s.of[n][m], k.of[tile], pair[0], pair[1]);
                }
        }
    }
}

/* Scales scores, because K of e4m3 has a scale and rows of Q may have powers of two. */
template <flash_config_t C>
static __device__ __forceinline__ void scale_scores(score_tile<C> &s,
                                                    const score_factors<C> &factors) {
    if constexpr (has_scales<C>) {
#pragma unroll
        for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
            for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    s.of[n][m][i] *= factors.of[n][i % 2];
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void multiply_p_v(output_tile<C> &o, const weight_fragments<C> &p,
                                                    uint32_t slot) {
#pragma unroll
    for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
        for (int load = 0; load < head_loads<C>; ++load) {
            const key_fragments<C> v = load_value_fragments<C>(v_address<C>(slot, m, load));
#pragma unroll
            for (int tile = 0; tile < load_tiles<C>; ++tile)
#pragma unroll
                for (int n = 0; n < row_groups<C>; ++n)
                    mma_m16n8k16<operand_dtype<C>>(o.of[n][load * load_tiles<C> + tile], v.of[tile],
                                                   p.pair[n][m][0], p.pair[n][m][1]);
        }
}

#endif
