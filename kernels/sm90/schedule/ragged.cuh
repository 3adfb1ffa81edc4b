/*
 * This is the LPT schedule for sequences that differ in length (varlen). How many tiles an entry
 * has is known only on the device, so the schedule reads the lengths of 32 entries at a time, a
 * slice of the batch, one per lane.
 *
 * Tiles are handed out in bundles, of one long tile or of a few short ones that follow each other
 * in an entry. Bundles are numbered entry after entry:
 *
 *     slice     entry 0 | entry 1     | entry 2 ... entry 31 | next slice
 *     tiles     # # #   | # # # # # # | ...
 *     bundles   0 1 2   | 3     4     | 5 ...
 *
 * The longest tiles of the batch do not come first here, so work differs more between blocks than
 * in ranks.cuh. Therefore in each round only those blocks take a bundle whose work exceeds the
 * least by less than the cost of the round's first bundle, least work first: a block with a long
 * tile sits out rounds of short ones. Three blocks, and bundles that cost 8 8 2 2 2 2:
 *
 *     round   bundles   block 0   block 1   block 2   work after
 *     0       8 8 2     8         8         2         8 8 2
 *     1       2         -         -         2         8 8 4
 *     2       2         -         -         2         8 8 6
 *     3       2         -         -         2         8 8 8
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_RAGGED_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_RAGGED_CUH

#include "common/kv.h"
#include "sm90/schedule/ranks.cuh"

/* A bundle of several tiles has at most this many blocks of keys in all. */
constexpr int32_t short_bundle_blocks = 16;

/* A slice of the batch is 32 entries that follow each other. Their lengths lie in
 * schedule_state_t. */
typedef struct batch_slice {
    int32_t first;  /* entry */
    uint32_t begin; /* number of its first bundle */
    uint32_t end;   /* number after the last bundle of its last entry */
} batch_slice_t;

/* Counts the tiles of a bundle in an entry with that number of keys: a power of two. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t tiles_of_bundle(const sm90_params_t &params,
                                                          int32_t len_k) {
    const int32_t cost = len_k / C.B_c + tile_overhead_blocks;
    const int32_t fitting = 8 * cost <= short_bundle_blocks   ? 8
                            : 4 * cost <= short_bundle_blocks ? 4
                            : 2 * cost <= short_bundle_blocks ? 2
                                                              : 1;
    return min(fitting, params.schedule.bundle_tiles);
}

/* Reads the slice that begins with entry `first`, whose first bundle has the number `begin`. The
 * whole warp calls this, once none of its lanes reads the slice before any more. */
template <flash_config_t C>
static __device__ __forceinline__ batch_slice_t read_slice(const sm90_params_t &params,
                                                           int32_t first, uint32_t begin) {
    const flash_params_t &p = params.problem;
    slice_entries_t &entries = block_state<C>().schedule.entries;
    const int32_t entry = first + (int32_t)lane_index();
    flash_sequence_t s = {};
    if (entry < p.batch) {
        if constexpr (has_pages<C>)
            s = flash_paged_sequence(&p, entry);
        else
            s = flash_sequence(&p, entry);
    }
    const int32_t per_bundle = tiles_of_bundle<C>(params, s.len_k);
    const uint32_t tiles = (uint32_t)sm90_tiles_of_entry(&C, &p, s.len_q);
    const uint32_t bundles = (tiles + per_bundle - 1) / per_bundle;
    const uint32_t end = begin + sum_before(bundles) + bundles;
    __syncwarp();
    entries.end[lane_index()] = end;
    entries.len_q[lane_index()] = s.len_q;
    entries.len_k[lane_index()] = s.len_k;
    entries.k_begin[lane_index()] = (int32_t)s.k_begin;
    __syncwarp();
    return batch_slice_t{first, begin, __shfl_sync(0xffffffffu, end, warp_threads - 1)};
}

/* Returns the sequence of an entry of the slice. What is known of its keys is read from shared
 * memory again, which takes fewer registers than to find it once more. Slices begin at multiples of
 * their size. */
template <flash_config_t C>
static __device__ __forceinline__ flash_sequence_t sequence_in_slice(const flash_params_t &p,
                                                                     int32_t batch_index) {
    const slice_entries_t &entries = block_state<C>().schedule.entries;
    const int32_t lane = batch_index % warp_threads;
    return flash_sequence_t{p.cu_seqlens_q ? p.cu_seqlens_q[batch_index] : 0, entries.k_begin[lane],
                            entries.len_q[lane], entries.len_k[lane]};
}

static __device__ __forceinline__ bool has_bundle(const batch_slice_t &slice, uint32_t number) {
    return number - slice.begin < slice.end - slice.begin;
}

/* Moves on to the next slice. Returns false where the batch has no more entries. */
template <flash_config_t C>
static __device__ __forceinline__ bool next_slice(const sm90_params_t &params,
                                                  batch_slice_t &slice) {
    if (slice.first + warp_threads >= params.problem.batch)
        return false;
    slice = read_slice<C>(params, slice.first + warp_threads, slice.end);
    return true;
}

/* Moves on to the slice that has the bundle. Returns false where the batch has fewer bundles. */
template <flash_config_t C>
static __device__ __forceinline__ bool reach_bundle(const sm90_params_t &params,
                                                    batch_slice_t &slice, uint32_t number) {
    while (number >= slice.end)
        if (!next_slice<C>(params, slice))
            return false;
    return true;
}

/* This says where a bundle is: its entry, counted in the slice, and its number among the bundles of
 * the entry. */
typedef struct bundle_position {
    int entry;
    uint32_t number;
} bundle_position_t;

/* Finds a bundle of the slice by binary search. */
static __device__ __forceinline__ bundle_position_t find_entry(const slice_entries_t &entries,
                                                               const batch_slice_t &slice,
                                                               uint32_t number) {
    int entry = 0;
#pragma unroll
    for (int step = warp_threads / 2; step > 0; step /= 2)
        entry += entries.end[entry + step - 1] <= number ? step : 0;
    return bundle_position_t{entry, number - (entry == 0 ? slice.begin : entries.end[entry - 1])};
}

/* Estimates what a bundle costs: as much as if all of its tiles were like the first. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t bundle_cost(const sm90_params_t &params,
                                                      const batch_slice_t &slice, uint32_t number) {
    const slice_entries_t &entries = block_state<C>().schedule.entries;
    const flash_params_t &p = params.problem;
    const bundle_position_t bundle = find_entry(entries, slice, number);
    const int32_t len_q = entries.len_q[bundle.entry], len_k = entries.len_k[bundle.entry];
    const int32_t per_bundle = tiles_of_bundle<C>(params, len_k);
    const int32_t first = (int32_t)bundle.number * per_bundle;
    const int32_t tiles = (int32_t)sm90_tiles_of_head(&C, &p, len_q);
    const int32_t section_tiles = tiles * params.schedule.section_heads;
    const int32_t section = (int32_t)__fdividef((float)first, (float)section_tiles);
    const int32_t rest = first - section * section_tiles;
    const int32_t width = min(sm90_heads(&C, &p) - section * params.schedule.section_heads,
                              params.schedule.section_heads);
    const int32_t tile = tiles - 1 - (int32_t)__fdividef((float)rest, (float)width);
    return per_bundle * tile_cost<C>(p, tile, len_q, len_k);
}

/* Adds the costs of the bundles of the round [first, first + size) that lie in the slice to the
 * work of the blocks that take them. */
template <flash_config_t C>
static __device__ __forceinline__ void add_bundles(const sm90_params_t &params,
                                                   const batch_slice_t &slice, uint32_t first,
                                                   uint32_t size, block_ranks_t &blocks) {
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block) {
        const uint32_t rank = blocks.rank[block];
        if (rank < size && has_bundle(slice, first + rank))
            blocks.work[block] += bundle_cost<C>(params, slice, first + rank);
    }
    __syncwarp();
}

/* Subtracts the least work of any block from all work, after a round. */
static __device__ __forceinline__ void subtract_least(block_ranks_t &blocks) {
    int32_t least = INT32_MAX;
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    least = min(least, blocks.work[block]);
    subtract_work(blocks, __reduce_min_sync(0xffffffffu, least));
}

/* Ranks the blocks for the round that begins with bundle number `first`. Returns how many blocks
 * take part. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t open_round(const sm90_params_t &params,
                                                      const batch_slice_t &slice, uint32_t first,
                                                      block_ranks_t &blocks) {
    const int32_t cost = bundle_cost<C>(params, slice, first);
    const int shift = class_shift(cost);
    const int32_t end = max(cost >> shift, 1);
    uint32_t size = 0;
    rank_blocks(blocks, shift);
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    size += class_of(blocks.work[block], shift) < end;
    return __reduce_add_sync(0xffffffffu, size);
}

/* The tiles of a bundle are [begin, end), numbered in the entry. */
typedef struct tile_bundle {
    int32_t batch_index;
    uint32_t begin;
    uint32_t end;
} tile_bundle_t;

template <flash_config_t C>
static __device__ __forceinline__ tile_bundle_t find_bundle(const sm90_params_t &params,
                                                            const batch_slice_t &slice,
                                                            uint32_t number) {
    const flash_params_t &p = params.problem;
    const slice_entries_t &entries = block_state<C>().schedule.entries;
    const bundle_position_t bundle = find_entry(entries, slice, number);
    const int32_t len_q = entries.len_q[bundle.entry], len_k = entries.len_k[bundle.entry];
    const uint32_t per_bundle = tiles_of_bundle<C>(params, len_k);
    const uint32_t tiles = (uint32_t)sm90_tiles_of_entry(&C, &p, len_q);
    const uint32_t begin = bundle.number * per_bundle;
    return tile_bundle_t{slice.first + bundle.entry, begin, min(begin + per_bundle, tiles)};
}

#endif
