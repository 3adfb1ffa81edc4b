/*
 * The KV-load warp: it loads the blocks of K and V of each tile, from the last to the first, as
 * soon as the consumers have left a stage for them.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_KV_CUH
#define FLASH_KERNELS_SM90_LOAD_KV_CUH

#include "sm90/block_state.cuh"
#include "sm90/load/box.cuh"
#include "sm90/load/pages.cuh"
#include "sm90/schedule/schedule.cuh"

typedef struct kv_loader {
    ring_t k;
    ring_t v;
    uint32_t o_parity; /* of o_left */
    int64_t first_id;  /* with pages: flash_kv_first_id() of the tile's sequence */
} kv_loader_t;

/* Returns the barrier that counts a block's bytes. */
template <flash_config_t C> static __device__ __forceinline__ const uint64_t &k_arrival(int stage) {
    if constexpr (converts<C>)
        return conversion_state<C>().k_landed[stage];
    else
        return block_state<C>().k_full[stage];
}

template <flash_config_t C>
static __device__ __forceinline__ const uint64_t &v_arrival(int stage, bool sanitised) {
    block_state_t &state = block_state<C>();
    return converts<C> || sanitised ? state.v_landed[stage] : state.v_full[stage];
}

/* Loads a block of K or V into its ring's next stage, which begins at `shared`. */
template <flash_config_t C, int STAGES>
static __device__ __forceinline__ void load_stage(const sm90_tensor_map_t *map, tma_box_t box,
                                                  uint32_t shared, const uint64_t &full,
                                                  const uint64_t &empty, ring_t &ring) {
    const uint32_t barrier = shared_address(&full);
    mbarrier_wait(shared_address(&empty), ring.parity ^ 1);
    mbarrier_arrive_expect(barrier, landing_bytes<C>);
#pragma unroll
    for (int i = 0; i < landing_panels<C>; ++i, box.column += landing_columns<C>)
        tma_load<has_varlen<C>>(shared + landing_offset<C> + i * kv_panel_bytes<C>, map, box,
                                barrier, l2_evict_last);
    step<STAGES>(ring);
}

/* Loads the block that begins with a key, in pages; the whole warp takes part. */
template <flash_config_t C, int STAGES>
static __device__ __forceinline__ void load_pages(const paged_tensor_t &tensor, int32_t begin,
                                                  uint32_t shared, const uint64_t &full,
                                                  const uint64_t &empty, ring_t &ring) {
    const uint32_t barrier = shared_address(&full);
    const page_ids<C> ids = fetch_page_ids<C>(tensor, begin);
    mbarrier_wait(shared_address(&empty), ring.parity ^ 1);
    if (elect_one())
        mbarrier_arrive_expect(barrier, landing_bytes<C>);
    __syncwarp();
    load_pieces<C>(tensor, ids, begin, shared, barrier);
    step<STAGES>(ring);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_k(const sm90_params_t &params, const tile_of<C> &tile,
                                              int32_t block, kv_loader_t &loader) {
    block_state_t &state = block_state<C>();
    const int stage = loader.k.stage;
    if constexpr (has_pages<C>)
        load_pages<C, k_stages<C>>(paged_k<C>(params, tile, loader.first_id), block * C.B_c,
                                   k_tile<C>(stage), k_arrival<C>(stage), state.k_empty[stage],
                                   loader.k);
    else
        load_stage<C, k_stages<C>>(
            &params.k, key_box<C>(params.problem, tile, block * C.B_c, params.entry_tokens.k),
            k_tile<C>(stage), k_arrival<C>(stage), state.k_empty[stage], loader.k);
}

template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void load_v(const sm90_params_t &params, const tile_of<C> &tile,
                                              int32_t block, kv_loader_t &loader) {
    block_state_t &state = block_state<C>();
    const int stage = loader.v.stage;
    const bool sanitised = sanitises_v<C, FIXED> && is_cut(tile, block);
    if constexpr (has_pages<C>)
        load_pages<C, v_stages<C>>(paged_v<C>(params, tile, loader.first_id), block * C.B_c,
                                   v_tile<C>(stage), v_arrival<C>(stage, sanitised),
                                   state.v_empty[stage], loader.v);
    else
        load_stage<C, v_stages<C>>(
            &params.v, key_box<C>(params.problem, tile, block * C.B_c, params.entry_tokens.v),
            v_tile<C>(stage), v_arrival<C>(stage, sanitised), state.v_empty[stage], loader.v);
}

/* Waits until the O of the tile before has left the stages of V. */
template <flash_config_t C>
static __device__ __forceinline__ void await_output(kv_loader_t &loader) {
    if constexpr (staging_of_o<C> == STAGED_IN_V) {
        mbarrier_wait(shared_address(&block_state<C>().o_left), loader.o_parity);
        loader.o_parity ^= 1;
    }
}

/* Loads K and V in the order in which the consumers need them. Where the O of the tile before is
 * staged in V, it leaves meanwhile: its stages come after v_stages_beside_o others, and are free
 * again before this tile's last block. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void load_tile(const sm90_params_t &params,
                                                 const tile_of<C> &tile, kv_loader_t &loader) {
    if (tile.block_begin >= tile.block_end)
        return;
    if constexpr (has_pages<C>)
        loader.first_id = flash_kv_first_id(&params.problem, tile.batch_index);
    const int32_t first_in_o = max(tile.block_end - 1 - v_stages_beside_o<C>, tile.block_begin);
    load_k<C>(params, tile, tile.block_end - 1, loader);
    for (int32_t block = tile.block_end - 1; block > tile.block_begin; --block) {
        load_k<C>(params, tile, block - 1, loader);
        if (block == first_in_o)
            await_output<C>(loader);
        load_v<C, FIXED>(params, tile, block, loader);
    }
    if (tile.block_begin == first_in_o)
        await_output<C>(loader);
    load_v<C, FIXED>(params, tile, tile.block_begin, loader);
}

/* Loads K and V of all tiles of a pass. One thread of the warp loads, in pages the whole warp;
 * tiles without blocks have nothing to load. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void load_kv_pass(const sm90_params_t &params,
                                                    kv_loader_t &loader, ring_t &assignments) {
    for (assignment_of<C> assignment = take_assignment<C>(assignments); assignment.index >= 0;
         assignment = take_assignment<C>(assignments))
        if (has_blocks(assignment.tile) && (has_pages<C> || elect_one()))
            load_tile<C, FIXED>(params, assignment.tile, loader);
}

#endif
