/*
 * A block of a decode kernel walks a part of the batch's keys: the pieces of several sequences, one
 * after the other (common/decode_parts.h).
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_PART_CUH
#define FLASH_KERNELS_COMMON_DECODE_PART_CUH

#include "common/decode/block.cuh"
#include "common/decode_parts.h"

/* A block keeps this of its part: what comes next in it. */
typedef struct part_walk {
    uint32_t part;
    uint32_t share;
    int32_t batch_index; /* of the sequence that comes next */
    uint32_t before;     /* costs of the sequences before it */
    int32_t splits;      /* sequences before it that are cut */
} part_walk_t;

/* The warps of a block exchange this while they look for the part's first sequence. */
template <flash_config_t C> struct part_scratch {
    uint32_t cost[C.n_warps];
    uint32_t longest[C.n_warps];
    int32_t first;
    uint32_t before;
    int32_t splits;
};

/* Sums the costs of a thread's sequences, and finds the largest. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t sum_costs(const flash_params_t &p,
                                                     const batch_part_t &own, uint32_t &longest) {
    uint32_t sum = 0;
    longest = 0;
#pragma unroll 1
    for (int32_t b = own.begin; b < own.end; ++b) {
        const uint32_t cost = decode_cost(count_units<C>(p, b));
        longest = max(longest, cost);
        sum += cost;
    }
    return sum;
}

/* A scan finds the costs before a thread's sequences, and the share of a part. */
typedef struct cost_scan {
    uint32_t before;
    uint32_t share;
} cost_scan_t;

template <flash_config_t C>
static __device__ __forceinline__ cost_scan_t scan_costs(const decode_params_t &params,
                                                         const batch_part_t &own,
                                                         part_scratch<C> &scratch) {
    const int warp = threadIdx.x / DECODE_WARP_THREADS, lane = threadIdx.x % DECODE_WARP_THREADS;
    uint32_t longest;
    const uint32_t of_thread = sum_costs<C>(params.attention, own, longest);
    uint32_t sum = of_thread;
#pragma unroll
    for (int step = 1; step < DECODE_WARP_THREADS; step *= 2) {
        const uint32_t left = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? left : 0;
    }
    longest = __reduce_max_sync(0xffffffffu, longest);
    if (lane == DECODE_WARP_THREADS - 1) {
        scratch.cost[warp] = sum;
        scratch.longest[warp] = longest;
    }
    __syncthreads();
    uint32_t before = sum - of_thread, total = 0;
#pragma unroll
    for (int w = 0; w < C.n_warps; ++w) {
        before += w < warp ? scratch.cost[w] : 0;
        total += scratch.cost[w];
        longest = max(longest, scratch.longest[w]);
    }
    const uint32_t share =
        decode_part_share(total, longest, (uint32_t)params.attention.batch, (uint32_t)params.parts);
    return {before, share};
}

/* Finds where the block's part begins; false if it has no sequence. Block 0 counts the sequences
 * that are cut, for the merging kernel. The result is the same for all threads. */
template <flash_config_t C>
static __device__ __forceinline__ bool find_part(const decode_params_t &params,
                                                 part_scratch<C> &scratch, part_walk_t &walk) {
    const flash_params_t &p = params.attention;
    const batch_part_t own = thread_part<C>(p.batch);
    if (threadIdx.x == 0) {
        scratch.first = INT32_MAX;
        scratch.splits = 0;
    }
    const cost_scan_t scan = scan_costs<C>(params, own, scratch);
    const uint32_t part = (uint32_t)find_place<C>(params).piece;
    const bool counts_all = blockIdx.x == 0;
    uint32_t before = scan.before, before_first = 0;
    int32_t first = INT32_MAX, splits = 0;
#pragma unroll 1
    for (int32_t b = own.begin; b < own.end; ++b) {
        const int32_t units = count_units<C>(p, b);
        const part_range_t range =
            decode_parts_of(before, units, scan.share, (uint32_t)params.parts);
        if (range.last >= part && first == INT32_MAX && range.first <= part) {
            first = b;
            before_first = before;
        }
        splits += range.last > range.first && (counts_all || range.last < part);
        before += decode_cost(units);
    }
    if (splits > 0)
        atomicAdd(&scratch.splits, splits);
    if (first != INT32_MAX)
        atomicMin(&scratch.first, first);
    __syncthreads();
    if (first != INT32_MAX && first == scratch.first)
        scratch.before = before_first;
    if (counts_all && threadIdx.x == 0)
        *params.n_splits = scratch.splits;
    __syncthreads();
    walk = {part, scan.share, scratch.first, scratch.before, counts_all ? 0 : scratch.splits};
    return walk.batch_index != INT32_MAX;
}

/* Finds the next tile of rows of the part that has rows; false if there is none. The result is the
 * same for all threads. */
template <flash_config_t C>
static __device__ __forceinline__ bool next_block(const decode_params_t &params, part_walk_t &walk,
                                                  decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const block_place_t at = find_place<C>(params);
#pragma unroll 1
    while (walk.batch_index < p.batch) {
        const int32_t b = walk.batch_index;
        block.sequence = sequence_of<C>(p, b);
        const unit_range_t all = decode_visible_units(&p, &block.sequence);
        const int32_t units = all.end - all.begin;
        const part_range_t range =
            decode_parts_of(walk.before, units, walk.share, (uint32_t)params.parts);
        if (range.first > walk.part)
            return false;
        const unit_range_t own =
            decode_part_units(range, walk.part, walk.before, units, walk.share);
        const int32_t count = (int32_t)(range.last - range.first) + 1;
        block.piece = {b, (int32_t)(walk.part - range.first), count, walk.splits};
        block.piece_index = (int32_t)walk.part + walk.splits;
        block.row_begin = at.row_tile * C.B_r;
        block.rows = min(block.sequence.len_q * p.group - block.row_begin, C.B_r);
        block.first_head_kv = at.head_block * params.heads_per_block;
        block.key_begin = (all.begin + own.begin) * DECODE_UNIT_KEYS;
        block.key_end = (int32_t)min((uint32_t)(all.begin + own.end) * DECODE_UNIT_KEYS,
                                     (uint32_t)block.sequence.len_k);
        block.units = 0;
        walk.before += decode_cost(units);
        walk.splits += count > 1;
        walk.batch_index = b + 1;
        if (block.rows > 0)
            return true;
    }
    return false;
}

#endif
