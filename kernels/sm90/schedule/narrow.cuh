/*
 * The scheduler narrows a tile to the blocks of keys from the first to the last that the mask shows
 * to any of its rows (sm90/shown_blocks.cuh).
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_NARROW_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_NARROW_CUH

#include "sm90/shown_blocks.cuh"

/* Returns how many of the blocks first, first + step and so on, at most n, are hidden before one
 * that is shown. */
static __device__ __forceinline__ int32_t count_hidden(const uint8_t *effects, int32_t first,
                                                       int32_t step, int32_t n) {
#pragma unroll 1
    for (int32_t i = 0; i < n; i += warp_threads) {
        const int32_t place = i + lane_index();
        const bool shown = place < n && effects[first + place * step] & MASK_SHOWS;
        const uint32_t lanes = __ballot_sync(0xffffffffu, shown);
        if (lanes != 0)
            return i + __ffs(lanes) - 1;
    }
    return n;
}

/* Returns how many of the blocks begin ... end - 1 are shown. */
static __device__ __forceinline__ int32_t count_shown(const uint8_t *effects, int32_t begin,
                                                      int32_t end) {
    int32_t n = 0;
#pragma unroll 1
    for (int32_t first = begin; first < end; first += warp_threads) {
        const int32_t block = first + lane_index();
        n += __popc(__ballot_sync(0xffffffffu, block < end && effects[block] & MASK_SHOWS));
    }
    return n;
}

/* All lanes of the warp call this. */
template <flash_config_t C>
static __device__ __forceinline__ void narrow_tile(const flash_params_t &p, tile_of<C> &tile) {
    if constexpr (leaves_out_blocks<C>) {
        if constexpr (counts_blocks<C>)
            tile.whole_begin = tile.block_end - tile.block_begin;
        if (p.bias.blocks.effects == nullptr || !has_blocks(tile))
            return;
        const uint8_t *effects = effects_of_tile<C>(p, tile);
        tile.block_end -=
            count_hidden(effects, tile.block_end - 1, -1, tile.block_end - tile.block_begin);
        tile.block_begin +=
            count_hidden(effects, tile.block_begin, 1, tile.block_end - tile.block_begin);
        if constexpr (counts_blocks<C>)
            tile.whole_begin = count_shown(effects, tile.block_begin, tile.block_end);
    }
}

#endif
