/*
 * Bytes that are to be converted land in places that belong to threads. This file says which chunks
 * of 16 bytes a thread has, and where.
 */
#ifndef FLASH_KERNELS_SM80_MLA_LANDING_CUH
#define FLASH_KERNELS_SM80_MLA_LANDING_CUH

#include "sm80/mla/derive.cuh"

constexpr int byte_chunk_columns = DECODE_CHUNK_BYTES; /* of e4m3 */
constexpr int panel_byte_chunks = panel_columns / byte_chunk_columns;
constexpr int pass_keys = DECODE_WARP_THREADS / panel_byte_chunks;
template <flash_config_t C> constexpr int passes = C.B_c / pass_keys;
template <flash_config_t C> constexpr int landing_bytes = sm80_mla_landing_bytes(&C);

/* A thread has a chunk of each of its warp's panels in every pass. In the pass of its warp's number
 * it has one of the last panel, too. */
template <flash_config_t C> constexpr int own_chunks = passes<C> *warp_panels<C>;

static __device__ __forceinline__ int pass_key() {
    return lane_number() / panel_byte_chunks;
}

static __device__ __forceinline__ int pass_chunk() {
    return lane_number() % panel_byte_chunks;
}

/* Returns the place of the thread's i-th chunk in a landing. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t landed_chunk(uint32_t landing, int i) {
    return landing + (i * decode_block_threads(&C) + (int)opaque(threadIdx.x)) * DECODE_CHUNK_BYTES;
}

#endif
