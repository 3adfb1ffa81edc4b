/*
 * Who takes which tile where the sequences of a batch differ in length (varlen). Tiles are handed
 * out in shares, of one long tile or a few short ones that follow each other, numbered entry after
 * entry; how many an entry has is known on the device alone. In each round the blocks that are
 * behind, by less than the round's first share costs, take a share each, the one with the least
 * work so far first; so a block with a long tile sits out rounds of short ones. As in balance.cuh
 * the scheduler of each block works out what all take.
 */
#ifndef FLASH_KERNELS_SM90_RAGGED_CUH
#define FLASH_KERNELS_SM90_RAGGED_CUH

#include "sm90/balance.cuh"

/* Blocks of keys that make a share of several tiles at most. */
constexpr int32_t short_share = 16;

/* Entries of the batch that are looked at together: see entries_t. */
typedef struct window {
    int32_t first;  /* entry */
    uint32_t begin; /* number of its first share */
    uint32_t end;   /* after the last entry's last share */
} window_t;

/* Tiles of a share, of an entry with so many keys: a power of two. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t tiles_together(const sm90_params_t &params,
                                                         int32_t len_k) {
    const int32_t cost = len_k / C.B_c + tile_overhead;
    const int32_t fitting = 4 * cost <= short_share ? 4 : 2 * cost <= short_share ? 2 : 1;
    return min(fitting, params.shares.tiles_together);
}

/* By the whole warp, when none of it reads the window before any more. */
template <flash_config_t C>
static __device__ __forceinline__ window_t window_at(const sm90_params_t &params, int32_t first,
                                                     uint32_t begin) {
    const flash_params_t &p = params.problem;
    entries_t &entries = block_state<C>().entries;
    const int32_t entry = first + (int32_t)own_lane();
    flash_sequence_t s = {};
    if (entry < p.batch)
        s = flash_sequence(&p, entry);
    const int32_t together = tiles_together<C>(params, s.len_k);
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, s.len_q) * (uint32_t)p.n_heads;
    const uint32_t shares = (tiles + together - 1) / together;
    const uint32_t end = begin + sum_before(shares) + shares;
    __syncwarp();
    entries.end[own_lane()] = end;
    entries.len_q[own_lane()] = s.len_q;
    entries.len_k[own_lane()] = s.len_k;
    __syncwarp();
    return window_t{first, begin, __shfl_sync(0xffffffffu, end, warp_threads - 1)};
}

static __device__ __forceinline__ bool is_inside(const window_t &w, uint32_t number) {
    return number - w.begin < w.end - w.begin;
}

/* To the next entries; false: there are none. */
template <flash_config_t C>
static __device__ __forceinline__ bool move_on(const sm90_params_t &params, window_t &w) {
    if (w.first + warp_threads >= params.problem.batch)
        return false;
    w = window_at<C>(params, w.first + warp_threads, w.end);
    return true;
}

/* Moves on until the share is inside; false: the batch has fewer. */
template <flash_config_t C>
static __device__ __forceinline__ bool reach(const sm90_params_t &params, window_t &w,
                                             uint32_t number) {
    while (number >= w.end)
        if (!move_on<C>(params, w))
            return false;
    return true;
}

/* Of a share: its entry's place in the window, and its number among the entry's. */
typedef struct entry_share {
    int entry;
    uint32_t number;
} entry_share_t;

/* number: inside the window. */
static __device__ __forceinline__ entry_share_t find_entry(const entries_t &entries,
                                                           const window_t &w, uint32_t number) {
    int entry = 0;
#pragma unroll
    for (int step = warp_threads / 2; step > 0; step /= 2)
        entry += entries.end[entry + step - 1] <= number ? step : 0;
    return entry_share_t{entry, number - (entry == 0 ? w.begin : entries.end[entry - 1])};
}

/* What a share costs, about: as its first tile. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t share_cost(const sm90_params_t &params, const window_t &w,
                                                     uint32_t number) {
    const entries_t &entries = block_state<C>().entries;
    const flash_params_t &p = params.problem;
    const entry_share_t share = find_entry(entries, w, number);
    const int32_t len_q = entries.len_q[share.entry], len_k = entries.len_k[share.entry];
    const int32_t together = tiles_together<C>(params, len_k);
    const int32_t first = (int32_t)share.number * together;
    const int32_t tiles = (int32_t)sm90_tiles_of_head(&C, len_q);
    const int32_t section_tiles = tiles * params.shares.section_heads;
    const int32_t section = (int32_t)__fdividef((float)first, (float)section_tiles);
    const int32_t rest = first - section * section_tiles;
    const int32_t width =
        min(p.n_heads - section * params.shares.section_heads, params.shares.section_heads);
    const int32_t tile = tiles - 1 - (int32_t)__fdividef((float)rest, (float)width);
    return together * tile_cost<C>(p, tile, len_q, len_k);
}

/* Adds the window's part of the round [first, first + size) to the loads. */
template <flash_config_t C>
static __device__ __forceinline__ void add_window(const sm90_params_t &params, const window_t &w,
                                                  uint32_t first, uint32_t size, shares_t &shares) {
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block) {
        const uint32_t place = shares.place[block];
        if (place < size && is_inside(w, first + place))
            shares.load[block] += share_cost<C>(params, w, first + place);
    }
    __syncwarp();
}

/* After a round. */
static __device__ __forceinline__ void subtract_least(shares_t &shares) {
    int32_t least = INT32_MAX;
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    least = min(least, shares.load[block]);
    subtract(shares, __reduce_min_sync(0xffffffffu, least));
}

/* Sorts the blocks for the round; returns how many take a share. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t open_round(const sm90_params_t &params,
                                                      const window_t &w, uint32_t first,
                                                      shares_t &shares) {
    const int32_t most = share_cost<C>(params, w, first);
    const int shift = class_shift(most);
    const int32_t end = max(most >> shift, 1);
    uint32_t size = 0;
    sort_shares(shares, shift);
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    size += class_of(shares.load[block], shift) < end;
    return __reduce_add_sync(0xffffffffu, size);
}

/* A share of the window, to be handed out. */
typedef struct tile_share {
    int32_t batch_index;
    uint32_t begin; /* numbers of its tiles, among those of the entry */
    uint32_t end;
} tile_share_t;

template <flash_config_t C>
static __device__ __forceinline__ tile_share_t find_share(const sm90_params_t &params,
                                                          const window_t &w, uint32_t number) {
    const flash_params_t &p = params.problem;
    const entries_t &entries = block_state<C>().entries;
    const entry_share_t share = find_entry(entries, w, number);
    const int32_t len_q = entries.len_q[share.entry], len_k = entries.len_k[share.entry];
    const uint32_t together = tiles_together<C>(params, len_k);
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, len_q) * (uint32_t)p.n_heads;
    const uint32_t begin = share.number * together;
    return tile_share_t{w.first + share.entry, begin, min(begin + together, tiles)};
}

#endif
