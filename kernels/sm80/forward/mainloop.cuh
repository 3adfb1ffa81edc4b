/*
 * The main loop visits the blocks of keys from the last to the first, so that the first block
 * visited is the one that the end of the sequence or the diagonal cuts.
 *
 * K and V have one buffer each. Late loads come just before their use. Eager ones start as soon as
 * the buffer is free, here with await_v_late:
 *
 *                 Q K^T, block n     softmax             P V, block n    Q K^T, block n - 1
 *     K buffer    read               load of block n - 1 ...             read
 *     V buffer    load of block n    ...                 read            load of block n - 1
 *
 * Each barrier says both that one buffer has been filled and that the other one is free.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_MAINLOOP_CUH
#define FLASH_KERNELS_SM80_FORWARD_MAINLOOP_CUH

#include "common/kv.h"
#include "sm80/forward/bias.cuh"
#include "sm80/forward/block_state.cuh"
#include "sm80/forward/dropout.cuh"
#include "sm80/forward/load.cuh"
#include "sm80/forward/mask.cuh"
#include "sm80/forward/pages.cuh"
#include "sm80/forward/products.cuh"
#include "sm80/forward/queries.cuh"
#include "sm80/forward/sanitise_v.cuh"
#include "sm80/forward/shown_blocks.cuh"
#include "sm80/forward/softmax.cuh"
#include "sm80/forward/tile.cuh"

template <flash_config_t C> struct warp_state {
    output_tile<C> o;
    softmax_state<C> softmax;
};

/* The operands of a thread: addresses in shared memory, and sources of loads. */
template <flash_config_t C> struct operands {
    uint32_t k_shared;
    uint32_t v_shared;
    lane_address<C> q_at;
    lane_address<C> k_at;
    lane_address<C> v_at;
    q_block<C> q;
    kv_source_of<C> k;
    kv_source_of<C> v;
    int32_t last_rows; /* keys in the block visited first */
    score_factors<C> factors;
};

/* Loads the next block of K or V, or starts to. FIRST: it is the first one visited. */
template <flash_config_t C, bool FIRST>
static __device__ __forceinline__ void load_next(uint32_t shared, kv_source_of<C> &source,
                                                 int32_t last_rows) {
    if constexpr (has_pages<C> && C.async_copy)
        copy_pages<C, C.B_c>(shared, source);
    else if constexpr (has_pages<C>)
        copy_pages_through_registers<C, C.B_c>(shared, source);
    else
        load_block<C, C.B_c, FIRST, kv_element_bytes<C>>(shared, source, FIRST ? last_rows : C.B_c);
    step_back<C.B_c>(source);
}

/* Waits until K has arrived and V's buffer is free. */
template <flash_config_t C, bool FIRST>
static __device__ __forceinline__ void await_k(operands<C> &x) {
    if constexpr (!C.eager_load_blocks)
        load_next<C, FIRST>(x.k_shared, x.k, x.last_rows);
    wait_for_loads<C>();
    __syncthreads();
    if constexpr (C.eager_load_blocks) {
        load_next<C, FIRST>(x.v_shared, x.v, x.last_rows);
        async_copy_commit();
    }
}

/* Says whether some row may not see all of a block. Kernels with bias, of which there is much code,
 * have the same code for blocks of both kinds, and look. */
template <flash_config_t C, bool FIRST, bool MASKED>
static __device__ __forceinline__ bool is_masked(int32_t block) {
    return MASKED && (FIRST || !has_bias<C> || is_cut<C>(block));
}

/* Waits until V has arrived; the only load that may still be under way is that of K. */
template <flash_config_t C, bool FIRST, bool MASKED>
static __device__ __forceinline__ void await_v(operands<C> &x, int32_t block) {
    if constexpr (!C.eager_load_blocks)
        load_next<C, FIRST>(x.v_shared, x.v, x.last_rows);
    if constexpr (C.eager_load_blocks && await_v_late<C>)
        async_copy_wait_all_but_last();
    else
        wait_for_loads<C>();
    if (has_mask<C> && is_masked<C, FIRST, MASKED>(block))
        zero_non_finite<C>(x.v_shared);
    __syncthreads();
}

/* Loads the next K, with eager loads. A barrier has made sure that all warps are done with QK^T. */
template <flash_config_t C>
static __device__ __forceinline__ void load_next_k(operands<C> &x, bool more) {
    if (more)
        load_next<C, false>(x.k_shared, x.k, C.B_c);
    async_copy_commit();
}

/* Refills K's buffer between QK^T and the softmax, with eager loads. */
template <flash_config_t C, bool FIRST, bool MASKED>
static __device__ __forceinline__ void reload_k(operands<C> &x, int32_t block, bool more) {
    if constexpr (await_v_late<C>)
        __syncthreads();
    else
        await_v<C, FIRST, MASKED>(x, block);
    load_next_k<C>(x, more);
}

/* Computes a block of keys. FIRST: it is visited first. MASKED: see is_masked().
 * mask_changes: a mask of bits or numbers changes its scores. */
template <flash_config_t C, bool FIRST, bool MASKED>
static __device__ __forceinline__ void
process_block(const flash_params_t &params, const score_unit_t &unit, operands<C> &x,
              warp_state<C> &state, int32_t block, bool more, bool mask_changes = false) {
    score_tile<C> s;
    await_k<C, FIRST>(x);
    compute_scores<C>(s, x.q, x.q_at, renew<C>(x.k_at));
    if constexpr (converts<C>)
        scale_rows<C>(s, x.factors);
    if constexpr (has_softcap<C>)
        cap_scores<C>(s, unit);
    if constexpr (has_bias<C>)
        add_bias<C>(s, params, find_tile<C>(params), block, mask_changes, unit.log2);
    if (is_masked<C, FIRST, MASKED>(block))
        mask_scores<C>(s, params, find_tile<C>(params), block);
    if constexpr (C.eager_load_blocks)
        reload_k<C, FIRST, MASKED>(x, block, more);
    softmax_block<C, FIRST>(s, state.softmax, state.o, softmax_unit<C>(unit));
    if constexpr (has_dropout<C>)
        drop_weights<C>(s, params, block);
    if constexpr (await_v_late<C>)
        await_v<C, FIRST, MASKED>(x, block);
    accumulate_output<C>(state.o, round_probabilities<C>(s), renew<C>(x.v_at));
}

/* Makes the sources of K and V, which begin with the last block's keys and step back from there.
 * The sequence is one run, or it lies in pages. */
template <flash_config_t C>
static __device__ __forceinline__ void make_sources(const flash_params_t &params,
                                                    const query_tile_t &tile, operands<C> &x) {
    const int64_t last_key = (int64_t)(tile.block_end - 1) * C.B_c;
    if constexpr (has_pages<C>) {
        const flash_pages_t &pages = params.pages;
        x.k = make_page_source<C>(params, params.k, params.k_stride, params.d_head, pages.table,
                                  tile, (int32_t)last_key);
        x.v = make_page_source<C>(params, params.v, params.v_stride, params.d_head_v, pages.v_table,
                                  tile, (int32_t)last_key);
    } else {
        const flash_kv_run_t run = flash_kv_run(&tile.sequence, tile.batch_index, last_key);
        const int32_t head_kv = tile.head / params.group;
        x.k = make_copy_source<C, kv_element_bytes<C>>(params.k, params.k_stride, params.d_head,
                                                       run.entry, head_kv, run.begin + run.at);
        x.v = make_copy_source<C, kv_element_bytes<C>>(params.v, params.v_stride, params.d_head_v,
                                                       run.entry, head_kv, run.begin + run.at);
        x.last_rows = (int32_t)flash_kv_left(&run);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ operands<C>
make_operands(const flash_params_t &params, const query_tile_t &tile, uint32_t q_shared) {
    const int warp = threadIdx.x / SM80_WARP_THREADS;
    operands<C> x;
    x.k_shared = q_shared + q_bytes<C>;
    x.v_shared = x.k_shared + kv_bytes<C>;
    x.q_at = lane_address_down_first<C>(q_shared + warp * warp_rows<C> * row_bytes<C>);
    x.k_at = lane_address_across_first<C>(x.k_shared);
    x.v_at = lane_address_down_first<C>(x.v_shared);
    make_sources<C>(params, tile, x);
    return x;
}

/* Loads Q, and with eager loads K's first block along with it. */
template <flash_config_t C>
static __device__ __forceinline__ void load_first(const flash_params_t &params,
                                                  const query_tile_t &tile, uint32_t q_shared,
                                                  operands<C> &x) {
    const row_source_t q = make_copy_source<C, element_bytes<C>>(
        params.q, params.q_stride, params.d_head, tile.batch_index, tile.head,
        tile.sequence.q_begin + tile.row_begin);
    load_block<C, C.B_r, true, element_bytes<C>>(q_shared, q, tile.rows);
    if constexpr (C.eager_load_blocks)
        load_next<C, true>(x.k_shared, x.k, x.last_rows);
    if constexpr (q_resident<C> || converts<C>) {
        wait_for_loads<C>();
        __syncthreads();
        if constexpr (converts<C>)
            x.factors = prepare_queries<C>(params, tile, q_shared);
        load_q_block<C>(x.q, x.q_at);
    }
}

/* Counts the blocks between two shown ones, of which the second has the lower number. */
static __device__ __forceinline__ int32_t blocks_between(const shown_block_t &at,
                                                         const shown_block_t &next) {
    return block_index(at) - 1 - block_index(next);
}

/* Computes a block, and goes on to the next one that is shown, down to `final`. With eager loads K
 * of the next block is loaded beside this one, so that it is found before; without, `final` is read
 * again, since a register would be in use all the time. */
template <flash_config_t C, bool FIRST>
static __device__ __forceinline__ void
process_from_block(const flash_params_t &params, const score_unit_t &unit, operands<C> &x,
                   warp_state<C> &state, shown_block_t &at, int32_t final) {
    shown_block_t next = at;
    if constexpr (C.eager_load_blocks) {
        next = find_shown_block<C, false>(params, block_index(at) - 1, final);
        step_over<C.B_c>(x.k, blocks_between(at, next));
    }
    const bool more = block_index(next) >= final;
    process_block<C, FIRST, true>(params, unit, x, state, block_index(at), more, mask_changes(at));
    if constexpr (!C.eager_load_blocks) {
        next = find_shown_block<C, false>(params, block_index(at) - 1, final_block<C>());
        step_over<C.B_c>(x.k, blocks_between(at, next));
    }
    step_over<C.B_c>(x.v, blocks_between(at, next));
    at = next;
}

/* Computes the blocks that a mask of bits or numbers shows, of a tile that has at least one block.
 */
template <flash_config_t C>
static __device__ __forceinline__ void
process_shown_blocks(const flash_params_t &params, query_tile_t tile, const score_unit_t &unit,
                     uint32_t q_shared, warp_state<C> &state) {
    initialize_block_state<C>(tile);
    initialize_dropout<C>(params, tile);
    shown_block_t at = find_shown_block<C, true>(params, tile.block_end - 1, tile.block_begin);
    if (block_index(at) < tile.block_begin)
        return;
    tile.block_end = block_index(at) + 1;
    begin_walk_at<C>(tile, block_index(at));
    operands<C> x = make_operands<C>(params, tile, q_shared);
    load_first<C>(params, tile, q_shared, x);
    process_from_block<C, true>(params, unit, x, state, at, tile.block_begin);
    while (block_index(at) >= final_block<C>())
        process_from_block<C, false>(params, unit, x, state, at, final_block<C>());
}

/* Computes all blocks of a tile that has at least one. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_blocks(const flash_params_t &params, const query_tile_t &tile, const score_unit_t &unit,
               uint32_t q_shared, warp_state<C> &state) {
    operands<C> x = make_operands<C>(params, tile, q_shared);
    initialize_block_state<C>(tile);
    initialize_dropout<C>(params, tile);
    load_first<C>(params, tile, q_shared, x);
    process_block<C, true, true>(params, unit, x, state, tile.block_end - 1,
                                 tile.block_end - 1 > tile.block_begin);
    for (int32_t block = tile.block_end - 2; block >= final_block<C>(tile); --block) {
        const bool more = block > final_block<C>(tile);
        if (is_cut<C>(block))
            process_block<C, false, true>(params, unit, x, state, block, more);
        else
            process_block<C, false, false>(params, unit, x, state, block, more);
    }
}

#endif
