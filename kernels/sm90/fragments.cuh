/*
 * A consumer's thread holds accumulators and fragments of S, P, Q and O in registers; this file
 * says which rows and columns of a tile they are (ptx/wgmma.cuh). A warp has sixteen rows of the
 * tile; a thread shares two of them, row lane / 4 and the row 8 below, with the three others of its
 * quad.
 */
#ifndef FLASH_KERNELS_SM90_FRAGMENTS_CUH
#define FLASH_KERNELS_SM90_FRAGMENTS_CUH

#include "sm90/derive.cuh"
#include "sm90/ptx/warpgroup.cuh"

template <flash_config_t C> struct score_tile { float s[score_registers<C>]; };

template <flash_config_t C> struct output_tile { float o[output_registers<C>]; };

/* The fragments of P as operand A, for each step along the keys, are the accumulators of S, in
 * pairs. */
template <flash_config_t C> struct probability_tile { uint32_t p[key_steps<C>][4]; };

/* The fragments of Q are operand A, where they stay in registers. */
template <flash_config_t C> struct query_fragments {
    uint32_t q[q_in_registers<C> ? head_steps<C> : 1][4];
};

/* O is stored from these words: word 2 i + half has the thread's two columns of group i of eight,
 * in row `half` of its two. */
template <flash_config_t C> struct rounded_output { uint32_t w[output_registers<C> / 2]; };

/* Returns the number of this warpgroup among the consumers. */
static __device__ __forceinline__ int consumer_number() {
    return uniform(threadIdx.x / SM90_WARPGROUP_THREADS) - 1;
}

/* Returns the first of the warp's sixteen rows, in the tile and in its warpgroup. */
static __device__ __forceinline__ int warp_row() {
    return (threadIdx.x / warp_threads - warpgroup_warps) * 16;
}

static __device__ __forceinline__ int warp_row_of_group() {
    return threadIdx.x / warp_threads % warpgroup_warps * 16;
}

/* Returns the row of this thread's half 0 or 1, in the warp's sixteen and in the tile. */
static __device__ __forceinline__ int row_of_warp(int half) {
    return half * 8 + threadIdx.x % warp_threads / 4;
}

static __device__ __forceinline__ int tile_row(int half) {
    return warp_row() + row_of_warp(half);
}

/* Returns the first of the thread's two columns in eight of an accumulator. */
static __device__ __forceinline__ int tile_column() {
    return threadIdx.x % 4 * 2;
}

/* A step along d_head, or along the columns of O, is two chunks of each row, in the panels of a
 * tile. */
constexpr int step_bytes = 2 * SM90_CHUNK_BYTES;
constexpr int steps_per_panel = SM90_PANEL_BYTES / step_bytes;

/* Returns where this lane's part of such a step begins, of sixteen rows in a tile of panels: two
 * chunks of 16 bytes per row, at which four matrices of eight rows begin. */
static __device__ __forceinline__ uint32_t fragment_row(uint32_t rows, int step, int panel_bytes) {
    const int row = threadIdx.x % 16, half = threadIdx.x % warp_threads / 16;
    const uint32_t first = rows + row * SM90_PANEL_BYTES + (half ^ row % 8) * SM90_CHUNK_BYTES;
    return (first ^ step % steps_per_panel * step_bytes) + step / steps_per_panel * panel_bytes;
}

#endif
