/*
 * All roles go over the same blocks of keys of a tile, from the last to the first. With bias they
 * leave out those that the mask hides from all rows, where flash_sm90_mask_blocks has looked at
 * them. The tile's first and last block are shown.
 */
#ifndef FLASH_KERNELS_SM90_SHOWN_BLOCKS_CUH
#define FLASH_KERNELS_SM90_SHOWN_BLOCKS_CUH

#include "common/mask_effect.cuh"
#include "sm90/tile.cuh"

/* Returns what the call's mask does to each block of keys of the tile, where that is known. */
template <flash_config_t C>
static __device__ __forceinline__ const uint8_t *effects_of_tile(const flash_params_t &p,
                                                                 const tile_of<C> &tile) {
    return p.bias.blocks.effects + flash_mask_blocks_at(&p.bias.blocks, tile.batch_index, tile.head,
                                                        tile.row_begin / C.B_r);
}

/* Returns the block that comes after the given one; one below the tile's first if there is none.
 * WARP: whole warps call this, and none of their lanes leaves the others. */
template <flash_config_t C, bool WARP = false>
static __device__ __forceinline__ int32_t next_shown(const flash_params_t &p,
                                                     const tile_of<C> &tile, int32_t block) {
    --block;
    if constexpr (has_bias<C>) {
        if (p.bias.blocks.effects == nullptr)
            return block;
        const uint8_t *effects = effects_of_tile<C>(p, tile);
#pragma unroll 1
        for (; block > tile.block_begin; --block) {
            const bool shown = __ldg(effects + block) & MASK_SHOWS;
            if (WARP ? __any_sync(0xffffffffu, shown) : shown)
                break;
        }
    }
    return block;
}

#endif
