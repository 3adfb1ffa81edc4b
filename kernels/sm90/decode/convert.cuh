/*
 * Of a cache of e4m3 the last warpgroup of a block, the converter, makes fp16 of each block of K
 * and V in its stage (load/convert_block.cuh), while the consumers multiply by others.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_CONVERT_CUH
#define FLASH_KERNELS_SM90_DECODE_CONVERT_CUH

#include "sm90/decode/barriers.cuh"
#include "sm90/decode/walk.cuh"
#include "sm90/load/convert_block.cuh"
#include "sm90/load/kv.cuh"

/* Converts the block in the ring's stage, when it has landed, and hands it on. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void convert_stage(ring_t &ring) {
    const block_state_t &state = block_state<C>();
    const int stage = ring.stage;
    const uint64_t &landed = T == TENSOR_K ? k_arrival<C>(stage) : v_arrival<C>(stage, false);
    const uint64_t &full = T == TENSOR_K ? state.k_full[stage] : state.v_full[stage];
    wait_full(landed, ring.parity);
    convert_block<C>(T == TENSOR_K ? k_tile<C>(stage) : v_tile<C>(stage), false);
    __syncwarp();
    mbarrier_arrive_once_if(shared_address(&full), true);
    step<kv_stages<C, T>>(ring);
}

/* Converts all blocks of the walk: this is the warpgroup's whole work. K of a block comes before V
 * of the block before it, as consumers need them. NaNs stay: consumers sanitise V. */
template <flash_config_t C>
static __device__ __forceinline__ void convert_walk(const key_walk_t &walk) {
    ring_t k = {0, 0}, v = {0, 0};
    if (walk.blocks > 0)
        convert_stage<C, TENSOR_K>(k);
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        if (n + 1 < walk.blocks)
            convert_stage<C, TENSOR_K>(k);
        convert_stage<C, TENSOR_V>(v);
        if (n >= whole_blocks(walk)) {
            meet_converter<C>(); /* before consumers look at V */
            meet_converter<C>(); /* and after */
        }
    }
}

#endif
