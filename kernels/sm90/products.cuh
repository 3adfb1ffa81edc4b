/*
 * The two matrix products of a warpgroup's 64 rows: S = Q K^T from shared memory, O += P V with P
 * from registers. Issued here, waited for by the caller.
 */
#ifndef FLASH_KERNELS_SM90_PRODUCTS_CUH
#define FLASH_KERNELS_SM90_PRODUCTS_CUH

#include "common/ptx/convert.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "sm90/block_state.cuh"
#include "sm90/ptx/descriptor.cuh"
#include "sm90/ptx/wgmma.cuh"

template <flash_config_t C> struct score_tile { float s[score_registers<C>]; };

template <flash_config_t C> struct output_tile { float o[output_registers<C>]; };

/* A's fragments for each step along the keys: those of S's accumulators, in pairs. */
template <flash_config_t C> struct probability_tile { uint32_t p[key_steps<C>][4]; };

/* A's fragments of Q, where they stay in registers. */
template <flash_config_t C> struct query_fragments {
    uint32_t q[q_in_registers<C> ? head_steps<C> : 1][4];
};

/* Number of this warpgroup among the consumers. */
static __device__ __forceinline__ int consumer_number() {
    return uniform(threadIdx.x / SM90_WARPGROUP_THREADS) - 1;
}

constexpr int steps_of_panel = SM90_PANEL_ELEMENTS / 16;
constexpr int step_bytes_across = 16 * SM90_ELEMENT_BYTES; /* along a row */
constexpr int step_bytes_down = 16 * panel_row_bytes;      /* from row to row */

/* Where step `step` along d_head begins in a tile of panels. */
static constexpr __device__ __forceinline__ uint32_t head_step_offset(int step, int panel_bytes) {
    return step / steps_of_panel * panel_bytes + step % steps_of_panel * step_bytes_across;
}

/* First row of the warp's sixteen in the tile, and in its warpgroup. */
static __device__ __forceinline__ int warp_row() {
    return (threadIdx.x / warp_threads - warpgroup_warps) * 16;
}

static __device__ __forceinline__ int warp_row_of_group() {
    return threadIdx.x / warp_threads % warpgroup_warps * 16;
}

/* Where this lane's part of a step along d_head begins, of sixteen rows in a tile of panels: two
 * chunks of 16 bytes a row, at which four matrices of eight rows begin. */
static __device__ __forceinline__ uint32_t fragment_row(uint32_t rows, int step, int panel_bytes) {
    const int row = threadIdx.x % 16, half = threadIdx.x % warp_threads / 16;
    const uint32_t first = rows + row * panel_row_bytes + (half ^ row % 8) * SM90_CHUNK_BYTES;
    return (first ^ step % steps_of_panel * step_bytes_across) +
           step / steps_of_panel * panel_bytes;
}

template <flash_config_t C>
static __device__ __forceinline__ void load_queries(query_fragments<C> &q) {
    const uint32_t rows = q_tile<C>(0) + warp_row() * panel_row_bytes;
#pragma unroll
    for (int i = 0; i < head_steps<C>; ++i)
        ldmatrix_x4(q.q[i], fragment_row(rows, i, q_panel_bytes<C>));
}

template <flash_config_t C>
static __device__ __forceinline__ void issue_scores(score_tile<C> &s, const query_fragments<C> &q,
                                                    uint32_t q_rows, int stage) {
    const uint32_t q_first = uniform(descriptor_low(q_rows, 0));
    const uint32_t k = descriptor_low(k_tile<C>(stage), 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < head_steps<C>; ++i) {
        const uint64_t k_step = descriptor(k, head_step_offset(i, kv_panel_bytes<C>));
        if constexpr (q_in_registers<C>)
            wgmma<C.dtype, C.B_c>::template register_a<0>(s.s, q.q[i], k_step, i > 0);
        else
            wgmma<C.dtype, C.B_c>::shared_a(
                s.s, descriptor(q_first, head_step_offset(i, q_panel_bytes<C>)), k_step, i > 0);
    }
    wgmma_commit();
}

template <flash_config_t C>
static __device__ __forceinline__ void issue_output(output_tile<C> &o, const probability_tile<C> &p,
                                                    int stage) {
    const uint32_t v = descriptor_low(v_tile<C>(stage), kv_panel_bytes<C>);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
        wgmma<C.dtype, C.d_head>::template register_a<1>(o.o, p.p[i],
                                                         descriptor(v, i * step_bytes_down), true);
    wgmma_commit();
}

template <flash_config_t C>
static __device__ __forceinline__ void round_probabilities(probability_tile<C> &p,
                                                           const score_tile<C> &s) {
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            p.p[i][j] = convert_pair<C.dtype>(s.s[8 * i + 2 * j], s.s[8 * i + 2 * j + 1]);
}

#endif
