/*
 * The warp that hands out tiles: finds each tile of the block ahead of the other roles, whose warps
 * read it from shared memory.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULER_CUH
#define FLASH_KERNELS_SM90_SCHEDULER_CUH

#include "sm90/ragged.cuh"

/* First pass: every round. Second: those that failed. */
enum { FIRST_PASS, SECOND_PASS };

template <flash_config_t C, int PASS> static __device__ __forceinline__ bool is_due(int32_t round) {
    const int32_t note = note_of(round);
    return PASS == FIRST_PASS || block_state<C>().failed[note / 32] >> note % 32 & 1;
}

/* Where the next tile is announced. The first one is found while the block's state is set up;
 * with varlen that would take registers that there are not. */
typedef struct announcer {
    ring_t ring;
    bool begun; /* the state is there */
} announcer_t;

template <flash_config_t C>
static __device__ __forceinline__ void announce(const assignment_of<C> &next, announcer_t &to) {
    block_state_t &state = block_state<C>();
    ring_t &ring = to.ring;
    if (!to.begun)
        __syncthreads();
    to.begun = true;
    mbarrier_wait(shared_address(&state.taken[ring.stage]), ring.parity ^ 1);
    if (elect_one()) {
        *(assignment_of<C> *)state.assignments[ring.stage] = next;
        state.values_hidden[ring.stage] = 0;
        mbarrier_arrive(shared_address(&state.assigned[ring.stage]));
    }
    __syncwarp();
    step<TILES_AHEAD>(ring);
}

/* Block by block in turn. */
template <flash_config_t C, int PASS>
static __device__ __forceinline__ void schedule_in_turn(const sm90_params_t &params,
                                                        announcer_t &to) {
    const uint32_t tiles = (uint32_t)sm90_tiles(&C, &params.problem);
    uint32_t number = blockIdx.x;
    for (int32_t round = 0; number < tiles; ++round, number += gridDim.x) {
        if (is_due<C, PASS>(round))
            announce<C>({find_tile<C>(params, number), round}, to);
        if (!C.persistent)
            break;
    }
}

/* Two neighbouring teams, which read neighbouring heads, begin with the longest tiles of theirs,
 * the next two with the shortest: a head's first tile reads all that it sees of K and V, and not
 * all teams should ask for most at the same time. */
static __device__ __forceinline__ bool begins_with_longest(uint32_t team) {
    return team / 2 % 2 == 0;
}

/* The heads that teams take: blocks that follow each other, which as a rule are neighbours on the
 * device too. Returns the tiles that the block has had. */
template <flash_config_t C, int PASS>
static __device__ __forceinline__ int32_t schedule_whole_heads(const sm90_params_t &params,
                                                               announcer_t &to) {
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, params.problem.seqlen_q);
    const uint32_t size = params.shares.team_blocks, shift = __ffs(size) - 1;
    const uint32_t teams = gridDim.x >> shift;
    const uint32_t team = blockIdx.x >> shift, rank = blockIdx.x & (size - 1);
    sm90_team_row_t row = {0, 0, 0};
    for (int32_t taken = 0;; ++taken, row = sm90_next_row(row, tiles, size)) {
        const uint32_t number = sm90_tile_in_row(row, size, rank);
        const bool is_next = number >= tiles;
        const uint32_t head = team + (row.head + is_next) * teams, tile = number - is_next * tiles;
        const place_t place = {head, begins_with_longest(team) ? tile : tiles - 1 - tile};
        if (head >= params.shares.whole_heads)
            return taken;
        if (is_due<C, PASS>(taken))
            announce<C>({tile_at<C>(params, place, tiles), taken}, to);
    }
}

/* Whole heads first, the other heads' tiles by load. */
template <flash_config_t C, int PASS>
static __device__ __forceinline__ void schedule_by_load(const sm90_params_t &params,
                                                        announcer_t &to) {
    const int32_t taken = schedule_whole_heads<C, PASS>(params, to);
    const numbering_t numbering = make_numbering<C>(params);
    shares_t &shares = block_state<C>().shares;
    start_shares(shares);
    for (int32_t round = 0;; ++round) {
        const round_tiles_t tiles = find_round(numbering, round);
        const uint32_t place = shares.place[blockIdx.x];
        if (place >= tiles.size)
            break;
        if (is_due<C, PASS>(taken + round))
            announce<C>({find_tile<C>(params, number_at(tiles, place)), taken + round}, to);
        add_round<C>(params.problem, numbering, tiles, shares);
        sort_shares(shares, class_shift(params.problem.seqlen_k / C.B_c + tile_overhead));
    }
}

/* taken: tiles that the block had before. */
template <flash_config_t C, int PASS>
static __device__ __forceinline__ void announce_share(const sm90_params_t &params,
                                                      const tile_share_t &share, int32_t &taken,
                                                      announcer_t &to) {
    for (uint32_t number = share.begin; number < share.end; ++number, ++taken)
        if (is_due<C, PASS>(taken))
            announce<C>({find_tile_of_entry<C>(params, share.batch_index, number), taken}, to);
}

template <flash_config_t C, int PASS>
static __device__ __forceinline__ void schedule_ragged(const sm90_params_t &params,
                                                       announcer_t &to) {
    shares_t &shares = block_state<C>().shares;
    window_t window = window_at<C>(params, 0, 0);
    uint32_t first = 0;
    int32_t taken = 0;
    start_shares(shares);
    while (reach<C>(params, window, first)) {
        const uint32_t size = open_round<C>(params, window, first, shares);
        const uint32_t place = shares.place[blockIdx.x];
        do {
            if (place < size && is_inside(window, first + place))
                announce_share<C, PASS>(params, find_share<C>(params, window, first + place), taken,
                                        to);
            add_window<C>(params, window, first, size, shares);
        } while (window.end < first + size && move_on<C>(params, window));
        subtract_least(shares);
        first += size;
    }
}

template <flash_config_t C> static __device__ __forceinline__ bool any_failed() {
    uint32_t failed = 0;
    for (int i = threadIdx.x % warp_threads; i < SM90_NOTES / 32; i += warp_threads)
        failed |= block_state<C>().failed[i];
    return __any_sync(0xffffffffu, failed != 0);
}

template <flash_config_t C, int PASS>
static __device__ __forceinline__ void schedule_pass(const sm90_params_t &params, announcer_t &to) {
    if constexpr (has_varlen<C>)
        schedule_ragged<C, PASS>(params, to);
    else if constexpr (C.longest_first)
        schedule_by_load<C, PASS>(params, to);
    else
        schedule_in_turn<C, PASS>(params, to);
    announce<C>({{}, -1}, to);
}

/* For a warp of another role: waits for the next tile and reads it. It may be read again, instead
 * of being kept in registers, until it is released. */
template <flash_config_t C>
static __device__ __forceinline__ assignment_of<C> read_assignment(const ring_t &ring) {
    static_assert(sizeof(assignment_of<C>) == (has_varlen<C> ? 3 : 2) * sizeof(uint4), "as read");
    const uint32_t shared = shared_address(block_state<C>().assignments[ring.stage]);
    const uint4 a = shared_load(shared), b = shared_load(shared + sizeof a);
    const query_tile_t tile = {(int32_t)a.x, (int32_t)a.y, (int32_t)a.z, (int32_t)a.w,
                               (int32_t)b.x, (int32_t)b.y, (int32_t)b.z};
    if constexpr (has_varlen<C>) {
        const uint4 c = shared_load(shared + 2 * sizeof a);
        return {{tile, (int32_t)b.w, (int32_t)c.x, (int32_t)c.y, (int32_t)c.z}, (int32_t)c.w};
    } else {
        return {tile, (int32_t)b.w};
    }
}

template <flash_config_t C>
static __device__ __forceinline__ assignment_of<C> await_assignment(const ring_t &ring) {
    wait_full(block_state<C>().assigned[ring.stage], ring.parity);
    return read_assignment<C>(ring);
}

template <flash_config_t C>
static __device__ __forceinline__ void release_assignment(ring_t &ring) {
    __syncwarp();
    release(block_state<C>().taken[ring.stage]);
    step<TILES_AHEAD>(ring);
}

/* Reads and releases. */
template <flash_config_t C>
static __device__ __forceinline__ assignment_of<C> take_assignment(ring_t &ring) {
    const assignment_of<C> assignment = await_assignment<C>(ring);
    release_assignment<C>(ring);
    return assignment;
}

#endif
