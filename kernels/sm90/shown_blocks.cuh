/*
 * All roles go over the same blocks of keys of a tile, from the last to the first. With bias they
 * leave out those that the mask hides from all rows, where flash_sm90_mask_blocks has looked at
 * them. The tile's first and last block are shown. The roles that load and convert look up which
 * block comes next. Consumers are told by the warp that loads K, with each block, or only count
 * (counts_blocks).
 */
#ifndef FLASH_KERNELS_SM90_SHOWN_BLOCKS_CUH
#define FLASH_KERNELS_SM90_SHOWN_BLOCKS_CUH

#include "common/mask_effect.cuh"
#include "sm90/block_state.cuh"

/* A block of keys: with bias it knows whether the mask changes scores. */
template <flash_config_t C>
using block_visit = std::conditional_t<has_bias<C>, shown_block_t, int32_t>;

static __device__ __forceinline__ int32_t block_index(int32_t block) {
    return block;
}

template <flash_config_t C>
static __device__ __forceinline__ block_visit<C> visit_of(int32_t block, bool mask_changes) {
    if constexpr (has_bias<C>)
        return shown_block_of(block, mask_changes);
    else
        return block;
}

/* Returns what the call's mask does to each block of keys of the tile, where that is known. */
template <flash_config_t C>
static __device__ __forceinline__ const uint8_t *effects_of_tile(const flash_params_t &p,
                                                                 const tile_of<C> &tile) {
    return p.bias.blocks.effects + flash_mask_blocks_at(&p.bias.blocks, tile.batch_index, tile.head,
                                                        tile.row_begin / C.B_r);
}

/* Returns the first block that is shown from the given one down to the tile's first; one below that
 * if there is none. Where nobody has looked, all are shown, and the mask may change any score. */
template <flash_config_t C>
static __device__ __forceinline__ block_visit<C> shown_from(const flash_params_t &p,
                                                            const tile_of<C> &tile, int32_t block) {
    if constexpr (!leaves_out_blocks<C>) {
        return block;
    } else {
        if (p.bias.blocks.effects == nullptr || block < tile.block_begin)
            return visit_of<C>(block, true);
        const uint8_t *effects = effects_of_tile<C>(p, tile);
        uint8_t effect = __ldg(effects + block);
#pragma unroll 1
        while (block > tile.block_begin && !(effect & MASK_SHOWS))
            effect = __ldg(effects + --block);
        return visit_of<C>(block, effect & MASK_CHANGES);
    }
}

/* Returns the tile's last block. */
template <flash_config_t C>
static __device__ __forceinline__ block_visit<C> last_shown(const flash_params_t &p,
                                                            const tile_of<C> &tile) {
    return shown_from<C>(p, tile, tile.block_end - 1);
}

/* Returns the block that comes after the given one. */
template <flash_config_t C>
static __device__ __forceinline__ block_visit<C>
next_shown(const flash_params_t &p, const tile_of<C> &tile, const block_visit<C> &block) {
    return shown_from<C>(p, tile, block_index(block) - 1);
}

/* ---- From the warp that loads K to the consumers. A stage has two places for its block, used in
 * turn, so that the next one can be told before consumers have left the one before. The one told
 * last in the same place is two uses back: before it loaded the use between, the warp that loads
 * has waited at k_empty for consumers to leave that one ---- */

template <flash_config_t C>
static __device__ __forceinline__ volatile int32_t &block_of_stage(const ring_t &k) {
    return *(volatile int32_t *)&block_state<C>().k_blocks[k.parity][k.stage];
}

/* Tells which block comes to a stage, in the thread that hands it on. */
template <flash_config_t C>
static __device__ __forceinline__ void announce_visit(const ring_t &k,
                                                      const block_visit<C> &block) {
    if constexpr (has_bias<C>)
        block_of_stage<C>(k) = block.code;
}

/* Returns the block of a stage that has arrived; without bias the one that is given. It is read by
 * the lane that arrives at k_empty for its warp, so that racecheck sees the order of this and what
 * is told next. */
template <flash_config_t C>
static __device__ __forceinline__ block_visit<C> announced_visit(const ring_t &k,
                                                                 int32_t otherwise) {
    if constexpr (has_bias<C>)
        return shown_block_t{
            shared_load_by_one(shared_address(&block_state<C>().k_blocks[k.parity][k.stage]))};
    else
        return otherwise;
}

#endif
