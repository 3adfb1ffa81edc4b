/*
 * A consumer walks over the blocks of keys of a tile. Where consumers do not take turns, and a mask
 * hides keys, its walk differs from the tile's: the consumer gives the tile's last block back
 * unread if none of its own 64 rows sees it, and masks only the blocks that are cut for these rows.
 */
#ifndef FLASH_KERNELS_SM90_MMA_WALK_CUH
#define FLASH_KERNELS_SM90_MMA_WALK_CUH

#include "sm90/block_state.cuh"

/* This says how a consumer's walk differs from the tile's. */
typedef struct walk {
    bool skips_last; /* leaves out the tile's last block; never its only one */
    int32_t whole_begin;
    int32_t whole_end;
} walk_t;

/* Finds the walk only from uniform values, so that loops and descriptors stay in uniform
 * registers. */
template <flash_config_t C>
static __device__ __forceinline__ walk_t find_walk(const flash_params_t &p, const tile_of<C> &tile,
                                                   int consumer) {
    if constexpr (walks_apart<C>) {
        tile_of<C> seen = tile;
        const int32_t queries = warpgroup_queries<C>(p);
        find_key_blocks<C>(p, seen, tile.row_begin + consumer * queries, queries);
        const bool has_more = tile.block_begin + 1 < tile.block_end;
        return walk_t{has_more && seen.block_end < tile.block_end, seen.whole_begin,
                      seen.whole_end};
    }
    return walk_t{};
}

/* Returns the tile as the consumer walks over it. */
template <flash_config_t C>
static __device__ __forceinline__ tile_of<C> walked_tile(tile_of<C> tile, const walk_t &walk) {
    if constexpr (walks_apart<C>) {
        tile.block_end -= walk.skips_last;
        tile.whole_begin = walk.whole_begin;
        tile.whole_end = walk.whole_end;
    }
    return tile;
}

/* Passes over the next stage of a ring, if the walk leaves its block out. The block must have
 * arrived: otherwise the next wait for that stage would take the phase before for its own. There is
 * no branch: see ptx/predicated.cuh. */
template <flash_config_t C, int STAGES>
static __device__ __forceinline__ void skip_last(const walk_t &walk, const uint64_t *full,
                                                 const uint64_t *empty, ring_t &ring) {
    if constexpr (walks_apart<C>) {
        ring_t next = ring;
        wait_full(full[ring.stage], ring.parity);
        release_if(walk.skips_last, empty[ring.stage]);
        step<STAGES>(next);
        ring = walk.skips_last ? next : ring;
    }
}

#endif
