/*
 * Who takes which tile when tiles differ in length: in each round the block with the least work so
 * far takes the longest tile, and so on. No block asks another: the scheduler of each works out the
 * same shares for all.
 */
#ifndef FLASH_KERNELS_SM90_BALANCE_CUH
#define FLASH_KERNELS_SM90_BALANCE_CUH

#include "sm90/block_state.cuh"

/* What a tile costs beside its blocks of keys, in blocks. */
constexpr int32_t tile_overhead = 1;

static __device__ __forceinline__ uint32_t own_lane() {
    return threadIdx.x % warp_threads;
}

/* The warp's loop over the blocks of the grid. */
#define FOR_BLOCKS_OF_LANE(block)                                                                  \
    for (uint32_t block = own_lane(); block < gridDim.x; block += warp_threads)

static __device__ __forceinline__ void start_shares(shares_t &shares) {
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block) {
        shares.load[block] = 0;
        shares.place[block] = (uint16_t)block;
    }
    __syncwarp();
}

/* Of loads, only the differences matter. */
static __device__ __forceinline__ void subtract(shares_t &shares, int32_t least) {
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    shares.load[block] -= least;
}

/* Of a launch. */
typedef struct numbering {
    uint32_t tiles;         /* of a head */
    uint32_t total;         /* of all heads */
    uint32_t heads;         /* of all batch entries, but for the whole ones */
    uint32_t section_heads; /* but for the last section */
} numbering_t;

template <flash_config_t C>
static __device__ __forceinline__ numbering_t make_numbering(const sm90_params_t &params) {
    const flash_params_t &p = params.problem;
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, p.seqlen_q);
    const uint32_t heads = (uint32_t)p.n_heads * (uint32_t)p.batch - params.shares.whole_heads;
    return numbering_t{tiles, tiles * heads, heads, (uint32_t)params.shares.section_heads};
}

/* The tiles of a round: the first ones end a section, the others, if any, begin the next. */
typedef struct round_tiles {
    uint32_t first;      /* number */
    uint32_t size;       /* 0 from the last round on */
    uint32_t ending;     /* of the section that ends: at most size */
    uint32_t begun;      /* of that section's tiles, handed out before */
    float inverse_width; /* 1 / heads, of the section that ends */
    float inverse_next;  /* and of the next */
} round_tiles_t;

static __device__ __forceinline__ float inverse_width(const numbering_t &n, uint32_t section) {
    const uint32_t first_head = section * n.section_heads;
    const uint32_t heads = first_head < n.heads ? n.heads - first_head : 1;
    return 1.0f / (float)min(heads, n.section_heads);
}

static __device__ __forceinline__ round_tiles_t find_round(const numbering_t &n, int32_t round) {
    const uint32_t section_tiles = n.section_heads * n.tiles;
    round_tiles_t r;
    r.first = (uint32_t)round * gridDim.x;
    r.size = r.first < n.total ? min(n.total - r.first, gridDim.x) : 0;
    const uint32_t section = r.first / section_tiles;
    r.begun = r.first - section * section_tiles;
    r.ending = min(section_tiles - r.begun, r.size);
    r.inverse_width = inverse_width(n, section);
    r.inverse_next = inverse_width(n, section + 1);
    return r;
}

/* Number of the tile in a place: those of the next section, which begins with long ones, come
 * first. */
static __device__ __forceinline__ uint32_t number_at(const round_tiles_t &r, uint32_t place) {
    const uint32_t beginning = r.size - r.ending;
    return r.first + (place < beginning ? r.ending + place : place - beginning);
}

/* What a tile costs, in blocks, about; tile: its number in its head, from the first rows on. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t tile_cost(const flash_params_t &p, int32_t tile,
                                                    const int32_t &len_q, const int32_t &len_k) {
    const int32_t diagonal = tile * C.B_r + len_k - len_q;
    const int64_t end = p.window_right < 0 ? len_k : (int64_t)diagonal + C.B_r + p.window_right;
    const int32_t begin = p.window_left < 0 ? 0 : max(diagonal - p.window_left, 0);
    const int32_t keys = max((int32_t)min(end, (int64_t)len_k) - begin, 0);
    return keys / C.B_c + tile_overhead;
}

/* What the tile in a place costs. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t cost_at(const flash_params_t &p, const numbering_t &n,
                                                  const round_tiles_t &r, uint32_t place) {
    const uint32_t beginning = r.size - r.ending;
    const bool begins = place < beginning;
    const uint32_t rest = begins ? place : r.begun + place - beginning;
    const float of_section = (float)rest * (begins ? r.inverse_next : r.inverse_width);
    const int32_t tile = (int32_t)n.tiles - 1 - (int32_t)of_section;
    return tile_cost<C>(p, tile, p.seqlen_q, p.seqlen_k);
}

/* Adds the round to the loads. */
template <flash_config_t C>
static __device__ __forceinline__ void add_round(const flash_params_t &p, const numbering_t &n,
                                                 const round_tiles_t &r, shares_t &shares) {
    int32_t least = INT32_MAX;
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block) {
        int32_t load = shares.load[block];
        if (shares.place[block] < r.size)
            load += cost_at<C>(p, n, r, shares.place[block]);
        shares.load[block] = load;
        least = min(least, load);
    }
    subtract(shares, __reduce_min_sync(0xffffffffu, least));
}

/* Loads are told apart in classes, of so many blocks that a cost is less than half of them. */
static __device__ __forceinline__ int class_shift(int32_t cost) {
    return max(0, __clz(LOAD_CLASSES / 2) + 1 - __clz(cost));
}

static __device__ __forceinline__ int32_t class_of(int32_t load, int shift) {
    return min(load >> shift, LOAD_CLASSES - 1);
}

/* Of the lanes before this one. */
static __device__ __forceinline__ uint32_t sum_before(uint32_t own) {
    uint32_t sum = own;
#pragma unroll
    for (int step = 1; step < warp_threads; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += own_lane() >= step ? other : 0;
    }
    return sum - own;
}

/* Sizes of the classes become the numbers of blocks in the classes before. */
static __device__ __forceinline__ void sum_classes(shares_t &shares) {
    static_assert(LOAD_CLASSES == 4 * warp_threads, "four a lane");
    uint4 *own = (uint4 *)shares.class_sizes + own_lane();
    const uint4 v = *own;
    const uint32_t before = sum_before(v.x + v.y + v.z + v.w);
    *own = uint4{before, before + v.x, before + v.x + v.y, before + v.x + v.y + v.z};
    __syncwarp();
}

/* Sorts the blocks by the classes of their loads, each class in the order of the blocks. */
static __device__ __forceinline__ void sort_shares(shares_t &shares, int shift) {
    uint32_t *sizes = shares.class_sizes;
    ((uint4 *)sizes)[own_lane()] = uint4{};
    __syncwarp();
#pragma unroll 1
    for (uint32_t first = 0; first < gridDim.x; first += warp_threads) {
        const uint32_t block = first + own_lane();
        const bool exists = block < gridDim.x;
        const int32_t own = exists ? class_of(shares.load[block], shift) : -1;
        const uint32_t same = __match_any_sync(0xffffffffu, own);
        const uint32_t before = same & ((1u << own_lane()) - 1);
        if (exists)
            shares.place[block] = (uint16_t)(sizes[own] + __popc(before));
        __syncwarp();
        if (exists && before == 0)
            sizes[own] += __popc(same);
        __syncwarp();
    }
    sum_classes(shares);
#pragma unroll 1
    FOR_BLOCKS_OF_LANE(block)
    shares.place[block] += (uint16_t)sizes[class_of(shares.load[block], shift)];
    __syncwarp();
}

#endif
