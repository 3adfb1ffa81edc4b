/*
 * Consumers that multiply e4m3 walk over the blocks of a tile in this way where they keep one tile
 * of scores: up to 128 columns of O as in one_part.cuh, with more as in in_parts.cuh.
 */
#ifndef FLASH_KERNELS_SM90_MMA_E4M3_BLOCKS_CUH
#define FLASH_KERNELS_SM90_MMA_E4M3_BLOCKS_CUH

#include "sm90/fp8/exponentials.cuh"
#include "sm90/fp8/reference.cuh"
#include "sm90/mma/consumer.cuh"

/* Adds a chunk of P to the sums, and rounds it. */
template <flash_config_t C>
static __device__ __forceinline__ void use_chunk(consumer_state<C> &consumer, int chunk) {
    add_chunk<C>(consumer.softmax, consumer.s, chunk);
    round_fragment<C>(consumer.p, consumer.s, chunk);
}

/* Starts the softmax of a tile with its first block, whose scores are done. */
template <flash_config_t C>
static __device__ __forceinline__ void
start_with_block(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
                 consumer_state<C> &consumer) {
    const int32_t block = tile.block_end - 1;
    finish_scores<C>(consumer.s, consumer, block == tile.block_begin);
    skip_last<C, v_stages<C>>(consumer.walk, block_state<C>().v_full, block_state<C>().v_empty,
                              consumer.v);
    prepare_scores<C, true>(consumer.s, params, tile, unit, block);
    consumer.softmax = start_softmax<C>(consumer.s);
}

/* Calls step(block, cut) for each block from `block` on. cut: std::true_type where some row may not
 * see some key of the block, else std::false_type. */
template <flash_config_t C, typename S>
static __device__ __forceinline__ void walk_from(int32_t block, const tile_of<C> &tile,
                                                 const S &step) {
#pragma unroll 1
    while (block >= tile.block_begin) {
        if constexpr (has_mask<C>)
#pragma unroll 1
            for (; block >= tile.block_begin && is_cut(tile, block); --block)
                step(block, std::true_type{});
#pragma unroll 1
        for (; block >= tile.block_begin && !(has_mask<C> && is_cut(tile, block)); --block)
            step(block, std::false_type{});
    }
}

#endif
