/*
 * Where consumers do not take turns, and a mask hides keys, each walks over the blocks of keys that
 * its own 64 rows see: it gives back the tile's last block unread if they do not see it, and masks
 * the blocks that are cut for them alone.
 */
#ifndef FLASH_KERNELS_SM90_WALK_CUH
#define FLASH_KERNELS_SM90_WALK_CUH

#include "sm90/block_state.cuh"

/* Where a consumer's walk over a tile differs from the tile. */
typedef struct walk {
    bool skips_last; /* block of the tile; never the only one */
    int32_t whole_begin;
    int32_t whole_end;
} walk_t;

/* From uniform values alone, so that loops and descriptors stay in uniform registers. */
template <flash_config_t C>
static __device__ __forceinline__ walk_t find_walk(const flash_params_t &p, const tile_of<C> &tile,
                                                   int consumer) {
    if constexpr (walks_apart<C>) {
        tile_of<C> own = tile;
        find_key_blocks<C>(p, own, tile.row_begin + consumer * SM90_WARPGROUP_ROWS,
                           SM90_WARPGROUP_ROWS);
        const bool has_more = tile.block_begin + 1 < tile.block_end;
        return walk_t{has_more && own.block_end < tile.block_end, own.whole_begin, own.whole_end};
    }
    return walk_t{};
}

/* The tile as the consumer walks over it. */
template <flash_config_t C>
static __device__ __forceinline__ tile_of<C> walked_tile(tile_of<C> tile, const walk_t &walk) {
    if constexpr (walks_apart<C>) {
        tile.block_end -= walk.skips_last;
        tile.whole_begin = walk.whole_begin;
        tile.whole_end = walk.whole_end;
    }
    return tile;
}

/* Passes over the next block of a ring, if the walk leaves it out. It must have come: the next wait
 * for its place would take the phase before for its own. No branch: see ptx/predicated.cuh. */
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
