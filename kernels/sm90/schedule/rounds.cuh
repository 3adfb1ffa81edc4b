/*
 * This file says which tiles a round of the LPT schedule hands out, and what they cost, where all
 * sequences have the same length. Tile numbers are those of order.cuh, without the heads that are
 * handed out whole.
 *
 * A round is a run of numbers, as many as the grid has blocks. Where it reaches into the next
 * section, the tiles of that section are longer, so they come first in rank:
 *
 *     numbers   ... section s, to its shortest ][ section s + 1, from its longest on ...
 *     round                        [ ending     ][ beginning      ]
 *     ranks                        [ beginning       ][ ending    ]
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_ROUNDS_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_ROUNDS_CUH

#include "sm90/schedule/ranks.cuh"

/* This counts the tiles of a launch, without the heads that are handed out whole. */
typedef struct tile_counts {
    uint32_t per_head;
    uint32_t total;         /* tiles of all heads */
    uint32_t heads;         /* of all batch entries */
    uint32_t section_heads; /* heads per section, but for the last */
} tile_counts_t;

template <flash_config_t C>
static __device__ __forceinline__ tile_counts_t count_tiles(const sm90_params_t &params) {
    const flash_params_t &p = params.problem;
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, &p, p.seqlen_q);
    const uint32_t heads =
        (uint32_t)sm90_heads(&C, &p) * (uint32_t)p.batch - params.schedule.whole_heads;
    return tile_counts_t{tiles, tiles * heads, heads, (uint32_t)params.schedule.section_heads};
}

typedef struct round {
    uint32_t first;              /* number of the round's first tile */
    uint32_t size;               /* tiles of the round; 0 after the last round */
    uint32_t ending;             /* tiles of the section in which it begins; at most size */
    uint32_t begun;              /* tiles of that section that earlier rounds have handed out */
    float inverse_section_heads; /* 1 / heads of that section */
    float inverse_next_heads;    /* 1 / heads of the next section */
} round_t;

static __device__ __forceinline__ float inverse_heads(const tile_counts_t &counts,
                                                      uint32_t section) {
    const uint32_t first_head = section * counts.section_heads;
    const uint32_t heads = first_head < counts.heads ? counts.heads - first_head : 1;
    return 1.0f / (float)min(heads, counts.section_heads);
}

static __device__ __forceinline__ round_t find_round(const tile_counts_t &counts, int32_t number) {
    const uint32_t section_tiles = counts.section_heads * counts.per_head;
    round_t r;
    r.first = (uint32_t)number * gridDim.x;
    r.size = r.first < counts.total ? min(counts.total - r.first, gridDim.x) : 0;
    const uint32_t section = r.first / section_tiles;
    r.begun = r.first - section * section_tiles;
    r.ending = min(section_tiles - r.begun, r.size);
    r.inverse_section_heads = inverse_heads(counts, section);
    r.inverse_next_heads = inverse_heads(counts, section + 1);
    return r;
}

/* Returns the number of the tile that the block of this rank takes. */
static __device__ __forceinline__ uint32_t number_at(const round_t &r, uint32_t rank) {
    const uint32_t beginning = r.size - r.ending;
    return r.first + (rank < beginning ? r.ending + rank : rank - beginning);
}

/* Estimates the cost of the tile that the block of this rank takes. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t cost_at(const flash_params_t &p,
                                                  const tile_counts_t &counts, const round_t &r,
                                                  uint32_t rank) {
    const uint32_t beginning = r.size - r.ending;
    const bool begins = rank < beginning;
    const uint32_t in_section = begins ? rank : r.begun + rank - beginning;
    const float in_head =
        (float)in_section * (begins ? r.inverse_next_heads : r.inverse_section_heads);
    const int32_t tile = (int32_t)counts.per_head - 1 - (int32_t)in_head;
    return tile_cost<C>(p, tile, p.seqlen_q, p.seqlen_k);
}

/* Adds the costs of the round's tiles to the work of the blocks that take them. */
template <flash_config_t C>
static __device__ __forceinline__ void add_round(const flash_params_t &p,
                                                 const tile_counts_t &counts, const round_t &r,
                                                 block_ranks_t &blocks) {
    int32_t least = INT32_MAX;
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block) {
        int32_t work = blocks.work[block];
        if (blocks.rank[block] < r.size)
            work += cost_at<C>(p, counts, r, blocks.rank[block]);
        blocks.work[block] = work;
        least = min(least, work);
    }
    subtract_work(blocks, __reduce_min_sync(0xffffffffu, least));
}

#endif
