/*
 * The scheduler is the warp that finds the tiles of its block, one after the other, ahead of the
 * other roles, and announces them.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_SCHEDULER_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_SCHEDULER_CUH

#include "sm90/schedule/assignments.cuh"
#include "sm90/schedule/narrow.cuh"
#include "sm90/schedule/order.cuh"
#include "sm90/schedule/passes.cuh"
#include "sm90/schedule/ragged.cuh"
#include "sm90/schedule/rounds.cuh"

/* Schedules tiles in the order of their numbers, without longest_first: block b of n has the tiles
 * b, b + n, b + 2 n and so on. */
template <flash_config_t C>
static __device__ __forceinline__ void schedule_in_turn(const sm90_params_t &params, bool second,
                                                        announcer_t &to) {
    const uint32_t tiles = (uint32_t)sm90_tiles(&C, &params.problem);
    uint32_t number = blockIdx.x;
    for (int32_t index = 0; number < tiles; ++index, number += gridDim.x) {
        if (is_due<C>(index, second))
            announce<C>({find_tile<C>(params, number), index}, to);
        if (!C.persistent)
            break;
    }
}

/* Says whether a team begins with the longest tiles of its heads, or else with the shortest. The
 * first tile of a head reads all K and V that it sees from memory, and not all teams should read
 * most at the same time; two neighbouring teams, which read neighbouring heads, do the same. */
static __device__ __forceinline__ bool begins_with_longest(uint32_t team) {
    return team / 2 % 2 == 0;
}

/* Schedules the first heads, which are handed out whole to teams of blocks. The blocks of a team
 * follow each other, and are mostly neighbours on the device too; sm90_next_row() draws how a team
 * shares its heads. Returns how many tiles the block has had. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t schedule_whole_heads(const sm90_params_t &params,
                                                               bool second, announcer_t &to) {
    const uint32_t tiles =
        (uint32_t)sm90_tiles_of_head(&C, &params.problem, params.problem.seqlen_q);
    const uint32_t size = params.schedule.team_blocks, shift = __ffs(size) - 1;
    const uint32_t teams = gridDim.x >> shift;
    const uint32_t team = blockIdx.x >> shift, rank = blockIdx.x & (size - 1);
    sm90_team_row_t row = {0, 0, 0};
    for (int32_t index = 0;; ++index, row = sm90_next_row(row, tiles, size)) {
        const uint32_t number = sm90_tile_in_row(row, size, rank);
        const bool is_next = number >= tiles;
        const uint32_t head = team + (row.head + is_next) * teams, tile = number - is_next * tiles;
        const tile_position_t position = {head,
                                          begins_with_longest(team) ? tile : tiles - 1 - tile};
        if (head >= params.schedule.whole_heads)
            return index;
        if (is_due<C>(index, second))
            announce<C>({tile_at<C>(params, position, tiles), index}, to);
    }
}

/* Schedules whole heads first, then the tiles of the other heads by the LPT schedule, or in turn if
 * they are even. This is for longest_first. */
template <flash_config_t C>
static __device__ __forceinline__ void schedule_longest_first(const sm90_params_t &params,
                                                              bool second, announcer_t &to) {
    const int32_t had = schedule_whole_heads<C>(params, second, to);
    const tile_counts_t counts = count_tiles<C>(params);
    block_ranks_t &blocks = block_state<C>().schedule.blocks;
    start_ranks(blocks);
    for (int32_t number = 0;; ++number) {
        const round_t r = find_round(counts, number);
        const uint32_t rank = blocks.rank[blockIdx.x];
        if (rank >= r.size)
            break;
        if (is_due<C>(had + number, second))
            announce<C>({find_tile<C>(params, number_at(r, rank)), had + number}, to);
        if (!params.schedule.is_even) {
            add_round<C>(params.problem, counts, r, blocks);
            rank_blocks(blocks,
                        class_shift(params.problem.seqlen_k / C.B_c + tile_overhead_blocks));
        }
    }
}

/* Announces the tiles of a bundle, which lanes find side by side: to find one takes nearly as long
 * as to compute a short one. With bias all lanes look at the mask of one tile. index: the index of
 * the bundle's first tile among the tiles of the block; it moves on past the last one. */
template <flash_config_t C>
static __device__ __forceinline__ void announce_bundle(const sm90_params_t &params,
                                                       const tile_bundle_t &bundle, bool second,
                                                       int32_t &index, announcer_t &to) {
    const int32_t entry = bundle.batch_index, tiles = (int32_t)(bundle.end - bundle.begin);
    const flash_sequence_t s = sequence_in_slice<C>(params.problem, entry);
    if constexpr (leaves_out_blocks<C>) {
#pragma unroll 1
        for (int32_t i = 0; i < tiles; ++i, ++index) {
            if (counts_blocks<C> && !is_due<C>(index, second))
                continue;
            tile_of<C> tile = find_tile_of_entry<C>(params, entry, s, bundle.begin + i);
            narrow_tile<C>(params.problem, tile);
            announce<C>({tile, index}, to);
        }
    } else {
        const int32_t own = min((int32_t)lane_index(), tiles - 1);
        const tile_of<C> tile = find_tile_of_entry<C>(params, entry, s, bundle.begin + own);
#pragma unroll 1
        for (int32_t i = 0; i < tiles; ++i, ++index)
            if (is_due<C>(index, second))
                announce_of_lane<C>({tile, index}, lane_index() == i, to);
    }
}

/* Schedules the bundles of a ragged batch. A round may reach over several slices of the batch. In
 * the first round, and in all of an even schedule, a block's rank is its number. */
template <flash_config_t C>
static __device__ __forceinline__ void schedule_ragged(const sm90_params_t &params, bool second,
                                                       announcer_t &to) {
    block_ranks_t &blocks = block_state<C>().schedule.blocks;
    batch_slice_t slice = read_slice<C>(params, 0, 0);
    uint32_t first = 0;
    int32_t index = 0;
    start_ranks(blocks);
    while (reach_bundle<C>(params, slice, first)) {
        const bool keeps_ranks = first == 0 || params.schedule.is_even;
        const uint32_t size = keeps_ranks ? gridDim.x : open_round<C>(params, slice, first, blocks);
        const uint32_t rank = blocks.rank[blockIdx.x];
        do {
            if (rank < size && has_bundle(slice, first + rank))
                announce_bundle<C>(params, find_bundle<C>(params, slice, first + rank), second,
                                   index, to);
            if (!params.schedule.is_even)
                add_bundles<C>(params, slice, first, size, blocks);
        } while (slice.end < first + size && next_slice<C>(params, slice));
        if (!params.schedule.is_even)
            subtract_least(blocks);
        first += size;
    }
}

/* Announces the block's tiles of one pass, and its end, which it returns. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t schedule_pass(const sm90_params_t &params, bool second,
                                                        announcer_t &to) {
    if constexpr (has_varlen<C>)
        schedule_ragged<C>(params, second, to);
    else if constexpr (C.longest_first)
        schedule_longest_first<C>(params, second, to);
    else
        schedule_in_turn<C>(params, second, to);
    announce<C>({{}, end_of_pass(second)}, to);
    return end_of_pass(second);
}

#endif
