/*
 * The LPT schedule (longest processing time first; R. L. Graham, "Bounds on Multiprocessing Timing
 * Anomalies", 1969) takes tiles longest first, and gives each to the block with the least work so
 * far. It is computed here in rounds. A round hands out one tile per block: the blocks are ranked
 * by their work, least first, and the block of rank r takes the r-th longest tile.
 *
 *     four blocks, tiles of 9 8 8 7 5 5 4 3 blocks of keys
 *
 *               round 0       ranks then   round 1     work
 *     block 0   9 #########   3            3 ###       12
 *     block 1   8 ########    1            5 #####     13
 *     block 2   8 ########    2            4 ####      12
 *     block 3   7 #######     0            5 #####     12
 *
 * The scheduler of each block computes the ranks of all blocks. So blocks need not talk to each
 * other, no counter in global memory must be cleared between launches, and what a block computes
 * does not depend on timing.
 *
 * Ranks are found by a counting sort on classes of work, by one warp: lane l looks after blocks l,
 * l + 32 and so on.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_RANKS_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_RANKS_CUH

#include "sm90/block_state.cuh"

/* A tile costs its blocks of keys and, for its beginning and end, about this many more. */
constexpr int32_t tile_overhead_blocks = 1;

/* This is the warp's loop over the blocks of the grid: lane l has blocks l, l + 32 and so on. */
#define FOR_BLOCKS_OF_LANE(block)                                                                  \
    for (uint32_t block = lane_index(); block < gridDim.x; block += warp_threads)

/* Starts the schedule: no block has work, and the ranks are the numbers of the blocks. */
static __device__ __forceinline__ void start_ranks(block_ranks_t &blocks) {
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block) {
        blocks.work[block] = 0;
        blocks.rank[block] = (uint16_t)block;
    }
    __syncwarp();
}

/* Subtracts the least work from that of each block, so that the numbers stay small. */
static __device__ __forceinline__ void subtract_work(block_ranks_t &blocks, int32_t least) {
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    blocks.work[block] -= least;
}

/* Estimates what a tile costs, in blocks of keys. tile: its number in the head, counted from the
 * first rows on. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t tile_cost(const flash_params_t &p, int32_t tile,
                                                    const int32_t &len_q, const int32_t &len_k) {
    const int32_t queries = tile_queries<C>(p);
    const int32_t diagonal = tile * queries + len_k - len_q + diagonal_offset<C>(p);
    int64_t end = p.window_right < 0 ? len_k : (int64_t)diagonal + queries + p.window_right;
    int32_t begin = p.window_left < 0 ? 0 : max(diagonal - p.window_left, 0);
    if constexpr (has_window<C>)
        if (p.attention_chunk > 0) {
            begin = max(begin, flash_attention_chunk_at(&p, diagonal).begin);
            end = min(end, (int64_t)flash_attention_chunk_at(
                               &p, min(diagonal + queries, len_k + diagonal_offset<C>(p)) - 1)
                               .end);
        }
    const int32_t keys = max((int32_t)min(end, (int64_t)len_k) - begin, 0);
    return keys / C.B_c + tile_overhead_blocks;
}

/* Returns a shift for classes of work, which are 2^shift blocks of keys wide: a tile of this cost
 * spans less than half of the classes. */
static __device__ __forceinline__ int class_shift(int32_t cost) {
    return max(0, __clz(WORK_CLASSES / 2) + 1 - __clz(cost));
}

static __device__ __forceinline__ int32_t class_of(int32_t work, int shift) {
    return min(work >> shift, WORK_CLASSES - 1);
}

/* Returns the sum of `value` over the lanes before this one. */
static __device__ __forceinline__ uint32_t sum_before(uint32_t value) {
    uint32_t sum = value;
#pragma unroll
    for (int step = 1; step < warp_threads; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane_index() >= step ? other : 0;
    }
    return sum - value;
}

/* Turns the size of each class into the number of blocks in the classes before it. */
static __device__ __forceinline__ void sum_classes(block_ranks_t &blocks) {
    static_assert(WORK_CLASSES == 4 * warp_threads, "four classes per lane");
    uint4 *of_lane = (uint4 *)blocks.class_sizes + lane_index();
    const uint4 v = *of_lane;
    const uint32_t before = sum_before(v.x + v.y + v.z + v.w);
    *of_lane = uint4{before, before + v.x, before + v.x + v.y, before + v.x + v.y + v.z};
    __syncwarp();
}

/* Ranks the blocks by the classes of their work, and within a class by their numbers. */
static __device__ __forceinline__ void rank_blocks(block_ranks_t &blocks, int shift) {
    uint32_t *sizes = blocks.class_sizes;
    ((uint4 *)sizes)[lane_index()] = uint4{};
    __syncwarp();
#pragma unroll 1
    for (uint32_t first = 0; first < gridDim.x; first += warp_threads) {
        const uint32_t block = first + lane_index();
        const bool exists = block < gridDim.x;
        const int32_t its_class = exists ? class_of(blocks.work[block], shift) : -1;
        const uint32_t same = __match_any_sync(0xffffffffu, its_class);
        const uint32_t before = same & ((1u << lane_index()) - 1);
        if (exists)
            blocks.rank[block] = (uint16_t)(sizes[its_class] + __popc(before));
        __syncwarp();
        if (exists && before == 0)
            sizes[its_class] += __popc(same);
        __syncwarp();
    }
    sum_classes(blocks);
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    blocks.rank[block] += (uint16_t)sizes[class_of(blocks.work[block], shift)];
    __syncwarp();
}

#endif
