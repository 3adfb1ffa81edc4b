/*
 * A block that walks a part of the batch's keys (common/decode/part.cuh) computes several tiles of
 * rows, one after the other. One warp finds each tile while the one before is computed, tells all
 * the others, and loads Q as soon as the last scores of the tile before are complete.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_TILES_CUH
#define FLASH_KERNELS_SM90_HALVES_TILES_CUH

#include "common/decode/part.cuh"
#include "common/ptx/async_copy.cuh"
#include "sm90/decode/load.cuh"
#include "sm90/decode/queries.cuh"
#include "sm90/halves/state.cuh"

/* Kernels that walk parts. With a bias there are no registers for what consumers keep. */
template <flash_config_t C> constexpr bool walks = halves_walks(&C) != 0;

/* Q that is converted passes through the consumers' registers. */
template <flash_config_t C> constexpr bool loads_queries_ahead = walks<C> && !has_scales<C>;

enum { TILE_WARP = KV_LOAD_WARP + 1 };

static __device__ __forceinline__ key_walk_t uniform_walk(const key_walk_t &walk) {
    return {uniform(walk.begin), uniform(walk.end), uniform(walk.blocks), uniform(walk.whole_begin),
            uniform(walk.whole_end)};
}

/* ---- Readers ---- */

/* Returns what the tile is of. */
template <flash_config_t C>
static __device__ __forceinline__ const decode_block_t &block_of(const ring_t &tiles) {
    return halves_tiles<C>().of[tiles.stage].block;
}

/* Goes on to the next tile, in all threads of a warp, which have read all that they need of this
 * one; false if there is none. */
template <flash_config_t C>
static __device__ __forceinline__ bool next_tile(ring_t &tiles, key_walk_t &walk) {
    halves_tiles_t &state = halves_tiles<C>();
    mbarrier_arrive(shared_address(&state.empty[tiles.stage]));
    step<HALVES_TILES>(tiles);
    mbarrier_wait(shared_address(&state.full[tiles.stage]), tiles.parity);
    const halves_tile_t &tile = state.of[tiles.stage];
    walk = uniform_walk(tile.walk);
    return uniform(tile.exists) != 0;
}

/* Hands the place of the first tile's Q, which the thread has stored its part of, to the warp that
 * loads Q of later tiles. */
template <flash_config_t C> static __device__ __forceinline__ void hand_over_first_queries() {
    if constexpr (loads_queries_ahead<C>)
        mbarrier_arrive(shared_address(&halves_tiles<C>().q_stored));
}

/* Waits for the Q of a tile after the first. */
template <flash_config_t C> static __device__ __forceinline__ void await_queries(uint32_t &parity) {
    mbarrier_wait(shared_address(&halves_tiles<C>().q_full), parity);
    async_proxy_fence();
    parity ^= 1;
}

/* Releases Q if the scores that are complete are a tile's last. */
template <flash_config_t C> static __device__ __forceinline__ void release_queries_if(bool last) {
    if constexpr (loads_queries_ahead<C>)
        release_if(last, halves_tiles<C>().q_empty);
}

/* ---- The converter, and V that consumers have read otherwise than by wgmma ---- */

/* Comes after the barriers of decode blocks. */
enum { SANITISED_BARRIER = (int)CONSUMER_BARRIER + SM90_MAX_CONSUMERS };
template <flash_config_t C>
constexpr int sanitised_threads = consumer_threads<C> + SM90_WARPGROUP_THREADS;

/* Tells the converter, in all consumers' threads, that blocks of the tile were cut, and that V of
 * the last one has been sanitised and multiplied. */
template <flash_config_t C> static __device__ __forceinline__ void tell_sanitised_if(bool was_cut) {
    if constexpr (walks<C> && converts<C>)
        if (was_cut)
            named_barrier_arrive(SANITISED_BARRIER, sanitised_threads<C>);
}

/* Waits in the converter for what consumers tell of the tile before, once for each tile of which
 * blocks were cut. It stores over them in the second block from here. No bytes would land there
 * before the consumers' warps have released the stage, but racecheck does not see that this stands
 * for all lanes. */
template <flash_config_t C>
static __device__ __forceinline__ void await_sanitised_if(bool &was_cut) {
    if (was_cut)
        named_barrier_sync(SANITISED_BARRIER, sanitised_threads<C>);
    was_cut = false;
}

/* ---- The warp that finds tiles ---- */

constexpr int query_row_lanes = panel_chunks;
constexpr int query_rows_at_once = warp_threads / query_row_lanes;

/* Starts to copy Q of a tile, as copy_queries() does. Eight lanes copy a row. */
template <flash_config_t C>
static __device__ __forceinline__ void load_tile_queries(const decode_params_t &params,
                                                         const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int chunk = (int)lane_index() % query_row_lanes;
#pragma unroll 1
    for (int row = (int)lane_index() / query_row_lanes; row < C.B_r; row += query_rows_at_once) {
        const bool exists = row < block.rows;
        const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
        const int64_t offset = row_offset(p, p.q_stride, block, block.first_head_kv, at);
        const char *from = (const char *)p.q + offset * element_bytes<C> + chunk * SM90_CHUNK_BYTES;
        const uint32_t to = query_chunk_place<C>(row, chunk);
#pragma unroll
        for (int panel = 0; panel < q_panels<C>; ++panel) {
            const int column = (panel * panel_chunks + chunk) * chunk_elements<C>;
            async_copy_or_zero(to + panel * q_panel_bytes<C>, from + panel * SM90_PANEL_BYTES,
                               exists && column < p.d_head);
        }
    }
}

/* Tells all warps the block's first tile, in one thread. They need not wait. */
template <flash_config_t C>
static __device__ __forceinline__ void tell_first_tile(const decode_block_t &block) {
    halves_tiles_t &state = halves_tiles<C>();
    state.of[0].block = block;
    mbarrier_arrive(shared_address(&state.full[0]));
}

/* Finds the next tile of the part, and tells it to all warps; false if there is none. What is told
 * is in shared memory, because the warp has few registers. */
template <flash_config_t C>
static __device__ __forceinline__ bool tell_next_tile(const decode_params_t &params,
                                                      part_walk_t &part, const ring_t &tiles) {
    halves_tiles_t &state = halves_tiles<C>();
    halves_tile_t &tile = state.of[tiles.stage];
    mbarrier_wait(shared_address(&state.empty[tiles.stage]), tiles.parity ^ 1);
    decode_block_t found;
    const bool exists = next_block<C>(params, part, found);
    if (lane_index() == 0)
        tile.block = found;
    __syncwarp();
    key_walk_t walk = {};
    if (exists)
        walk = find_walk<C>(params, tile.block);
    if (lane_index() == 0) {
        tile.walk = walk;
        tile.exists = exists;
        mbarrier_arrive(shared_address(&state.full[tiles.stage]));
    }
    __syncwarp();
    return exists;
}

/* Finds all tiles after the block's first: this is the warp's whole work. */
template <flash_config_t C>
static __device__ __forceinline__ void find_tiles(const decode_params_t &params,
                                                  part_walk_t &part) {
    ring_t tiles = {1, 0};
    uint32_t q_parity = 0;
#pragma unroll 1
    while (tell_next_tile<C>(params, part, tiles)) {
        const decode_block_t &block = block_of<C>(tiles);
        if (lane_index() == 0)
            record_split(params, block);
        if constexpr (loads_queries_ahead<C>) {
            mbarrier_wait(shared_address(&halves_tiles<C>().q_stored), 0);
            mbarrier_wait(shared_address(&halves_tiles<C>().q_empty), q_parity);
            q_parity ^= 1;
            load_tile_queries<C>(params, block);
            hand_on_rows(shared_address(&halves_tiles<C>().q_full));
        }
        step<HALVES_TILES>(tiles);
    }
}

#endif
