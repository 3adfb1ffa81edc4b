/*
 * Two warps load the blocks of each tile from pages, from the last block to the first: one loads K,
 * the other V. The latter also sanitises V, where no converter does. LOADER, of boxes or of rows,
 * is the way in which they do it.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_PAGED_KV_CUH
#define FLASH_KERNELS_SM90_LOAD_PAGED_KV_CUH

#include "sm90/load/kv.cuh"
#include "sm90/load/page_boxes.cuh"
#include "sm90/load/rows.cuh"
#include "sm90/load/sanitise_v.cuh"

/* ---- K ---- */

template <flash_config_t C>
static __device__ __forceinline__ stage_to_fill_t k_stage_to_fill(const ring_t &ring) {
    const int stage = ring.stage;
    return {k_tile<C>(stage), shared_address(&k_arrival<C>(stage)),
            shared_address(&block_state<C>().k_empty[stage]), ring.parity};
}

template <flash_config_t C, typename LOADER>
static __device__ __forceinline__ void load_paged_k(const sm90_params_t &params,
                                                    const tile_of<C> &tile, ring_t &ring) {
    const flash_params_t &p = params.problem;
    const paged_tensor_t k = find_pages<C>(p, params.paging, k_pool(params, p), tile.batch_index,
                                           tile.k_begin, tile.len_k, tile.head / p.group);
    LOADER loader = {};
    fetch_ids<C>(k, (tile.block_end - 1) * C.B_c, loader);
#pragma unroll 1
    for (block_visit<C> next, block = last_shown<C>(p, tile);
         block_index(block) >= tile.block_begin; block = next) {
        next = next_shown<C>(p, tile, block);
        if (lane_index() == 0)
            announce_visit<C>(ring, block);
        load_block<C, TENSOR_K>(k, block_index(block) * C.B_c, block_index(next) * C.B_c, loader,
                                with_holes<C, TENSOR_K>(k_stage_to_fill<C>(ring), ring.stage));
        step<k_stages<C>>(ring);
    }
    finish_blocks<C>(loader);
}

/* Loads K of all tiles of a pass, and returns what ended it. */
template <flash_config_t C, typename LOADER>
static __device__ __forceinline__ int32_t load_paged_k_pass(const sm90_params_t &params,
                                                            ring_t &ring, ring_t &assignments) {
    assignment_of<C> assignment = take_assignment<C>(assignments);
    for (; assignment.index >= 0; assignment = take_assignment<C>(assignments))
        if (has_blocks(assignment.tile))
            load_paged_k<C, LOADER>(params, assignment.tile, ring);
    return assignment.index;
}

/* ---- V ---- */

typedef struct v_loader {
    ring_t ring;
    uint32_t landed_parities; /* a bit per stage: see sanitise_stage() */
    uint32_t o_parity;        /* of o_left */
} v_loader_t;

template <flash_config_t C>
static __device__ __forceinline__ stage_to_fill_t v_stage_to_fill(const ring_t &ring,
                                                                  bool sanitised) {
    const int stage = ring.stage;
    return {v_tile<C>(stage), shared_address(&v_arrival<C>(stage, sanitised)),
            shared_address(&block_state<C>().v_empty[stage]), ring.parity};
}

/* slot: that of the tile's assignment. SANITISES: if a mask cuts the block. */
template <flash_config_t C, bool SANITISES, typename LOADER>
static __device__ __forceinline__ void
load_paged_v(const sm90_params_t &params, const tile_of<C> &tile, int slot, v_loader_t &v_loader) {
    const flash_params_t &p = params.problem;
    const paged_tensor_t v = find_pages<C>(p, params.paging, v_pool(params, p), tile.batch_index,
                                           tile.k_begin, tile.len_k, tile.head / p.group);
    const int32_t first_in_o = first_block_in_o<C>(p, tile);
    LOADER loader = {};
    fetch_ids<C>(v, (tile.block_end - 1) * C.B_c, loader);
#pragma unroll 1
    for (block_visit<C> next, visited = last_shown<C>(p, tile);
         block_index(visited) >= tile.block_begin; visited = next) {
        const int32_t block = block_index(visited);
        next = next_shown<C>(p, tile, visited);
        const bool sanitised = has_mask<C> && SANITISES && is_cut(tile, block);
        if (block == first_in_o)
            await_output<C>(v_loader.o_parity);
        load_block<C, TENSOR_V>(v, block * C.B_c, block_index(next) * C.B_c, loader,
                                v_stage_to_fill<C>(v_loader.ring, sanitised));
        if constexpr (has_mask<C> && SANITISES && !converts<C>)
            if (sanitised) {
                finish_blocks<C>(loader);
                sanitise_stage<C>(v_loader.ring.stage, v_loader.landed_parities, slot);
            }
        step<v_stages<C>>(v_loader.ring);
    }
    finish_blocks<C>(loader);
    if (tile.block_begin > first_in_o)
        await_output<C>(v_loader.o_parity);
}

/* Loads V of all tiles of a pass, and sanitises it where nobody else does. */
template <flash_config_t C, bool SANITISES, typename LOADER>
static __device__ __forceinline__ void load_paged_v_pass(const sm90_params_t &params,
                                                         v_loader_t &loader, ring_t &assignments) {
    while (true) {
        const int slot = assignments.stage;
        const assignment_of<C> assignment = take_assignment<C>(assignments);
        if (assignment.index < 0)
            break;
        if (has_blocks(assignment.tile))
            load_paged_v<C, SANITISES, LOADER>(params, assignment.tile, slot, loader);
    }
}

#endif
