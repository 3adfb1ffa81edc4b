/*
 * The warp that hands out tiles: finds each tile of the block ahead of the other roles, whose warps
 * read it from shared memory.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULER_CUH
#define FLASH_KERNELS_SM90_SCHEDULER_CUH

#include "sm90/balance.cuh"

/* First pass: every round. Second: those that failed. */
enum { FIRST_PASS, SECOND_PASS };

template <flash_config_t C, int PASS> static __device__ __forceinline__ bool is_due(int32_t round) {
    return PASS == FIRST_PASS || block_state<C>().failed[round / 32] >> round % 32 & 1;
}

template <flash_config_t C>
static __device__ __forceinline__ void announce(const assignment_t &assignment, ring_t &ring) {
    block_state_t &state = block_state<C>();
    mbarrier_wait(shared_address(&state.taken[ring.stage]), ring.parity ^ 1);
    if (elect_one()) {
        state.assignments[ring.stage] = assignment;
        state.values_hidden[ring.stage] = 0;
        mbarrier_arrive(shared_address(&state.assigned[ring.stage]));
    }
    __syncwarp();
    step<TILES_AHEAD>(ring);
}

/* Block by block in turn. */
template <flash_config_t C, int PASS>
static __device__ __forceinline__ void schedule_in_turn(const sm90_params_t &params, ring_t &ring) {
    const uint32_t tiles = (uint32_t)sm90_tiles(&C, &params.problem);
    uint32_t number = blockIdx.x;
    for (int32_t round = 0; number < tiles; ++round, number += gridDim.x) {
        if (is_due<C, PASS>(round))
            announce<C>(assignment_t{find_tile<C>(params, number), round}, ring);
        if (!C.persistent)
            break;
    }
}

template <flash_config_t C, int PASS>
static __device__ __forceinline__ void schedule_by_load(const sm90_params_t &params, ring_t &ring) {
    const numbering_t numbering = make_numbering<C>(params);
    shares_t &shares = block_state<C>().shares;
    start_shares(shares);
    for (int32_t round = 0;; ++round) {
        const round_tiles_t tiles = find_round(numbering, round);
        const uint32_t place = shares.place[blockIdx.x];
        if (place >= tiles.size)
            break;
        if (is_due<C, PASS>(round))
            announce<C>(assignment_t{find_tile<C>(params, number_at(tiles, place)), round}, ring);
        add_round<C>(params.problem, numbering, tiles, shares);
        sort_shares(shares, class_shift<C>(params.problem));
    }
}

template <flash_config_t C> static __device__ __forceinline__ bool any_failed() {
    uint32_t failed = 0;
    for (int i = threadIdx.x % warp_threads; i < SM90_MAX_ROUNDS / 32; i += warp_threads)
        failed |= block_state<C>().failed[i];
    return __any_sync(0xffffffffu, failed != 0);
}

template <flash_config_t C, int PASS>
static __device__ __forceinline__ void schedule_pass(const sm90_params_t &params, ring_t &ring) {
    if (PASS == FIRST_PASS || any_failed<C>()) {
        if constexpr (C.longest_first)
            schedule_by_load<C, PASS>(params, ring);
        else
            schedule_in_turn<C, PASS>(params, ring);
    }
    announce<C>(assignment_t{{}, -1}, ring);
}

/* For a warp of another role: waits for the next tile and reads it. It may be read again, instead
 * of being kept in registers, until it is released. */
template <flash_config_t C>
static __device__ __forceinline__ assignment_t read_assignment(const ring_t &ring) {
    const uint32_t shared = shared_address(&block_state<C>().assignments[ring.stage]);
    const uint4 low = shared_load(shared), high = shared_load(shared + sizeof low);
    return assignment_t{{(int32_t)low.x, (int32_t)low.y, (int32_t)low.z, (int32_t)low.w,
                         (int32_t)high.x, (int32_t)high.y, (int32_t)high.z},
                        (int32_t)high.w};
}

template <flash_config_t C>
static __device__ __forceinline__ assignment_t await_assignment(const ring_t &ring) {
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
static __device__ __forceinline__ assignment_t take_assignment(ring_t &ring) {
    const assignment_t assignment = await_assignment<C>(ring);
    release_assignment<C>(ring);
    return assignment;
}

#endif
