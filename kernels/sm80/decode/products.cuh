/*
 * The two products of a step over B_c keys, by one warp: S^T = K Q^T and O^T += V^T P^T.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_PRODUCTS_CUH
#define FLASH_KERNELS_SM80_DECODE_PRODUCTS_CUH

#include "common/ptx/ldmatrix.cuh"
#include "sm80/decode/load.cuh"
#include "sm80/decode/rows.cuh"
#include "sm80/ptx/mma.cuh"

/* of[n][m][2 * half + j]: key m * 16 + half * 8 + g, row n * 8 + 2t + j. */
template <flash_config_t C> struct score_tile { float of[row_groups<C>][key_tiles<C>][4]; };

/* P as the second operand: pair[n][m][half] has keys m * 16 + half * 8 + 2t, + 1 of row g. */
template <flash_config_t C> struct weight_fragments {
    uint32_t pair[row_groups<C>][key_tiles<C>][2];
};

/* of[n][d][2 * half + j]: column d * 16 + half * 8 + g of O, row n * 8 + 2t + j. */
template <flash_config_t C> struct output_tile { float of[row_groups<C>][head_tiles<C>][4]; };

/* Keys down a tile, columns across: A of S^T. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t k_tile_address(uint32_t slot, int key_tile,
                                                          int head_tile) {
    const int lane = threadIdx.x % DECODE_WARP_THREADS;
    const uint32_t address = slot + chunk_offset<C>(lane % 16, lane / 16);
    return (address ^ (head_tile % 4 * 2 * DECODE_CHUNK_BYTES)) + head_tile / 4 * panel_bytes<C> +
           key_tile * 16 * DECODE_PANEL_BYTES;
}

/* Columns down a tile, keys across, when ldmatrix transposes: A of O^T. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t v_tile_address(uint32_t slot, int key_tile,
                                                          int head_tile) {
    const int lane = threadIdx.x % DECODE_WARP_THREADS;
    const uint32_t address = slot + chunk_offset<C>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    return (address ^ (head_tile % 4 * 2 * DECODE_CHUNK_BYTES)) + head_tile / 4 * panel_bytes<C> +
           key_tile * 16 * DECODE_PANEL_BYTES;
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
        for (int d = 0; d < head_tiles<C>; ++d) {
            uint32_t k[4];
            ldmatrix_x4(k, k_tile_address<C>(slot, m, d));
#pragma unroll
            for (int n = 0; n < row_groups<C>; ++n)
                mma_m16n8k16<C.dtype>(s.of[n][m], k, q.pair[n][d][0], q.pair[n][d][1]);
        }
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void multiply_p_v(output_tile<C> &o, const weight_fragments<C> &p,
                                                    uint32_t slot) {
#pragma unroll
    for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
        for (int d = 0; d < head_tiles<C>; ++d) {
            uint32_t v[4];
            ldmatrix_x4_trans(v, v_tile_address<C>(slot, m, d));
#pragma unroll
            for (int n = 0; n < row_groups<C>; ++n)
                mma_m16n8k16<C.dtype>(o.of[n][d], v, p.pair[n][m][0], p.pair[n][m][1]);
        }
}

#endif
