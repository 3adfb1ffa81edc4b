/*
 * These kernels compute attention whose O has too many columns for the registers of one warpgroup:
 * two have the same rows, and half of the columns each. Those of SM90_MLA are for a V that is the
 * first columns of K, as multi-head latent attention (MLA) decodes: K is read once and multiplied
 * twice. Those of SM90_WIDE are for any K and V of 257 to 512 columns.
 *
 * A block has one piece of a sequence's keys for a tile of 64 packed rows (queries x query heads),
 * or a part of the keys of all sequences for one such tile of each (common/decode_parts.h). Pieces
 * are merged by flash_sm90_decode_combine.
 *
 *     warpgroup 0, the producer           warpgroups 1, 2: consumers of the same 64 rows
 *       KV_LOAD_WARP       K by TMA         1: S = Q K^T, P = softmax(S), O += P V, first half
 *       VALUES_LOAD_WARP   V, if not in K   2: O += P V, second half
 *       TILE_WARP          the next tile, Q
 *
 * With K of e4m3 or of latent tokens, warpgroup 3 is the converter (halves/convert.cuh).
 *
 * A generated wrapper gives each configuration its name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void __launch_bounds__(sm90_block_threads(&config), 1)
 *     NAME(const __grid_constant__ sm90_decode_params_t params) {
 *         sm90_halves<config>(params);
 *     }
 */
#ifndef FLASH_KERNELS_SM90_HALVES_CUH
#define FLASH_KERNELS_SM90_HALVES_CUH

#include "common/ptx/dependent_launch.cuh"
#include "sm90/halves/convert.cuh"
#include "sm90/halves/load.cuh"
#include "sm90/halves/queries.cuh"
#include "sm90/halves/result.cuh"
#include "sm90/halves/store.cuh"

enum { VALUES_LOAD_WARP = KV_LOAD_WARP + 1 };

/* Loads the sink of the warp's row lane % 16. */
static __device__ __forceinline__ float load_lane_sink(const decode_params_t &params,
                                                       const decode_block_t &block) {
    const int row = warp_row_of_group() + (int)lane_index() % halves_warp_rows;
    return load_sink(params.attention, block.first_head_kv,
                     find_row(params, block.row_begin + min(row, block.rows - 1)));
}

/* ---- A block of one tile ---- */

/* Computes and stores half of the columns: consumer 0's, which has the scores, or consumer 1's. */
template <flash_config_t C>
static __device__ __forceinline__ void
consume_half(const decode_params_t &params, const decode_block_t &block, const key_walk_t &walk) {
    const score_unit_t unit = score_unit_of<has_softcap<C>>(params.attention);
    const int number = consumer_number();
    half_state<C> half = {};
    copy_half_queries<C, true>(params, block);
    meet_consumers<C>();
    const float sink = load_lane_sink(params, block);
    if (number == 0) {
        scorer_state<C> scorer = {};
        start_scorer<C>(scorer, true);
        score_walk<C, false>(scorer, half, params, block, walk, units_of_scores<C>(unit),
                             find_tile_bias<C>(params, block, unit));
        finish_sums(scorer.softmax);
        leave_weights<C>(scorer.softmax);
    } else {
        follow_walk<C>(half, params, block, walk);
    }
    finish_half<C>(params, block, half.o, number, sink,
                   has_bias<C> ? natural_unit_after_bias(params.attention.bias, unit) : unit);
}

/* Loads K, and in another warp V, unless it lies in K. */
template <flash_config_t C>
static __device__ __forceinline__ void produce_stages(const sm90_decode_params_t &params,
                                                      const decode_block_t &block,
                                                      const key_walk_t &walk) {
    const int warp = threadIdx.x / warp_threads;
    ring_t ring = {0, 0};
    if (warp == KV_LOAD_WARP)
        load_all<C, TENSOR_K>(params, block, walk, k_pool(params, params.cut.attention), ring,
                              true);
    else if (!v_in_k<C> && warp == VALUES_LOAD_WARP)
        load_all<C, TENSOR_V>(params, block, walk, v_pool(params, params.cut.attention), ring,
                              true);
}

template <flash_config_t C>
static __device__ __forceinline__ void compute_one_tile(const sm90_decode_params_t &params) {
    static_assert(sizeof(cut_scratch<C>) <= q_bytes<C>, "the scratch lies over Q");
    decode_block_t block;
    if (!find_block<C>(params.cut, *(cut_scratch<C> *)shared_memory, block))
        return;
    if (threadIdx.x == 0) {
        initialize_halves_state<C>();
        record_split(params.cut, block);
    }
    __syncthreads();
    const key_walk_t walk = find_walk<C>(params.cut, block);
    if (converts<C> && threadIdx.x >= first_converter<C>) {
        release_registers<converter_registers>();
        if constexpr (converts<C>)
            convert_walk<C>(walk);
    } else if (threadIdx.x >= SM90_WARPGROUP_THREADS) {
        acquire_registers<consumer_registers<C>>();
        consume_half<C>(params.cut, block, walk);
    } else {
        release_registers<producer_registers<C>>();
        produce_stages<C>(params, block, walk);
    }
}

/* ---- A block of the tiles of a part ---- */

/* Computes half of the columns of a tile. The thread then has the factors of its rows. */
template <flash_config_t C>
static __device__ __forceinline__ void
compute_half(half_state<C> &half, const decode_params_t &params, const decode_block_t &block,
             const key_walk_t &walk, const score_unit_t &unit, float (&factors)[2]) {
    if (consumer_number() == 0) {
        scorer_state<C> scorer = {};
        start_scorer<C>(scorer, walk.blocks > 0);
        release_queries_if<C>(walk.blocks == 0);
        score_walk<C, true>(scorer, half, params, block, walk, units_of_scores<C>(unit),
                            find_tile_bias<C>(params, block, unit));
        finish_sums(scorer.softmax);
#pragma unroll
        for (int i = 0; i < 2; ++i)
            factors[i] = store_weight<C>(params, block, group_row() + 8 * i,
                                         {scorer.softmax.max[i], scorer.softmax.sum[i]}, unit);
        hand_on_factors<C>(half, factors);
    } else {
        follow_walk<C>(half, params, block, walk);
        take_factors<C>(half, factors);
    }
}

/* Has Q of a tile after the first in shared memory. Consumer 1 is here when the scores of the tile
 * before are complete, because it has the factors of its rows. */
template <flash_config_t C>
static __device__ __forceinline__ void
change_queries(const decode_params_t &params, const decode_block_t &block, uint32_t &parity) {
    if constexpr (loads_queries_ahead<C>) {
        if (consumer_number() == 0)
            await_queries<C>(parity);
    } else {
        copy_half_queries<C, false>(params, block);
        meet_consumers<C>();
    }
}

/* Computes and stores half of the columns of O of all tiles. */
template <flash_config_t C>
static __device__ __forceinline__ void consume_tiles(const decode_params_t &params,
                                                     key_walk_t walk) {
    const score_unit_t unit = score_unit_of<has_softcap<C>>(params.attention);
    half_state<C> half = {};
    ring_t tiles = {0, 0};
    uint32_t q_parity = 0;
    copy_half_queries<C, true>(params, block_of<C>(tiles));
    hand_over_first_queries<C>();
    meet_consumers<C>();
#pragma unroll 1
    for (;;) {
        float factors[2];
        compute_half<C>(half, params, block_of<C>(tiles), walk, unit, factors);
        tell_sanitised_if<C>(whole_blocks(walk) < walk.blocks);
        store_from_registers<C>(params, block_of<C>(tiles), half.o, consumer_number(), factors);
        if (!next_tile<C>(tiles, walk))
            return;
        change_queries<C>(params, block_of<C>(tiles), q_parity);
#pragma unroll
        for (int i = 0; i < half_registers<C>; ++i)
            half.o[i] = 0.0f;
    }
}

/* Loads K of all tiles. */
template <flash_config_t C>
static __device__ __forceinline__ void load_tiles(const sm90_decode_params_t &params,
                                                  key_walk_t walk) {
    const page_pool_t from = k_pool(params, params.cut.attention);
    ring_t ring = {0, 0}, tiles = {0, 0};
    bool is_first = true;
#pragma unroll 1
    do {
        load_all<C, TENSOR_K>(params, block_of<C>(tiles), walk, from, ring, is_first);
        __syncwarp();
        is_first = false;
    } while (next_tile<C>(tiles, walk));
}

/* Converts the keys of all tiles. */
template <flash_config_t C> static __device__ __forceinline__ void convert_tiles(key_walk_t walk) {
    const chunk_offsets_t offsets = lane_offsets<C>();
    ring_t ring = {0, 0}, tiles = {0, 0};
    bool was_cut = false;
#pragma unroll 1
    do
        convert_tile<C>(walk, ring, offsets, was_cut);
    while (next_tile<C>(tiles, walk));
    await_sanitised_if<C>(was_cut);
}

template <flash_config_t C>
static __device__ __forceinline__ void compute_part(const sm90_decode_params_t &params) {
    static_assert(sizeof(part_scratch<C>) <= q_bytes<C>, "the scratch lies over Q");
    decode_block_t block;
    part_walk_t part;
    if (!find_part<C>(params.cut, *(part_scratch<C> *)shared_memory, part) ||
        !next_block<C>(params.cut, part, block))
        return;
    if (threadIdx.x == 0) {
        initialize_tiles_state<C>();
        tell_first_tile<C>(block);
        record_split(params.cut, block);
    }
    __syncthreads();
    const key_walk_t walk = find_walk<C>(params.cut, block);
    if (converts<C> && threadIdx.x >= first_converter<C>) {
        release_registers<converter_registers>();
        if constexpr (converts<C>)
            convert_tiles<C>(walk);
    } else if (threadIdx.x >= SM90_WARPGROUP_THREADS) {
        acquire_registers<consumer_registers<C>>();
        consume_tiles<C>(params.cut, walk);
    } else {
        release_registers<producer_registers<C>>();
        if (threadIdx.x / warp_threads == KV_LOAD_WARP)
            load_tiles<C>(params, walk);
        else if (threadIdx.x / warp_threads == TILE_WARP)
            find_tiles<C>(params.cut, part);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void sm90_halves(const sm90_decode_params_t &params) {
    assert_halves<C>();
    launch_dependents();
    if (threadIdx.x == KV_LOAD_WARP * warp_threads) {
        tma_prefetch_map(&params.k);
        if constexpr (is_latent<C> || !v_in_k<C>)
            tma_prefetch_map(&params.v);
    }
    if constexpr (walks<C>)
        compute_part<C>(params);
    else
        compute_one_tile<C>(params);
}

#endif
