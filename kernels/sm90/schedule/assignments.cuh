/*
 * The scheduler announces the block's tiles to the other roles through a ring in shared memory. It
 * runs ahead of them by at most ASSIGNMENT_SLOTS tiles.
 *
 *     scheduler             announce(): waits for `taken`, fills a slot, arrives at `assigned`
 *         |
 *         v
 *     [ slot 0 | slot 1 | slot 2 | slot 3 ]
 *         |
 *         v
 *     every other warp      await_assignment(): waits for `assigned`, reads the slot
 *                           release_assignment(): arrives at `taken`
 *
 * All of these warps read every assignment, up to the one that ends the pass. The sanitise warp
 * does so only where it has something to do (sanitise_warp_reads).
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_ASSIGNMENTS_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_ASSIGNMENTS_CUH

#include "sm90/block_state.cuh"

/* An assignment is a tile, with its index among the tiles of the block; a negative index ends the
 * pass. */
template <flash_config_t C> struct alignas(16) assignment_of {
    tile_of<C> tile;
    int32_t index;
};

/* This is what the scheduler needs to announce the next tile. The first tile is found while the
 * block's state is still being set up, and announce() waits for the state. (With varlen the
 * scheduler waits first: finding a tile there takes registers that would be missing.) */
typedef struct announcer {
    ring_t ring;
    bool is_state_ready;
} announcer_t;

/* Announces the assignment that one lane of the warp has; is_mine is true there. */
template <flash_config_t C>
static __device__ __forceinline__ void announce_of_lane(const assignment_of<C> &next, bool is_mine,
                                                        announcer_t &to) {
    block_state_t &state = block_state<C>();
    ring_t &ring = to.ring;
    if (!to.is_state_ready)
        __syncthreads();
    to.is_state_ready = true;
    mbarrier_wait(shared_address(&state.taken[ring.stage]), ring.parity ^ 1);
    if (is_mine) {
        *(assignment_of<C> *)state.assignments[ring.stage] = next;
        state.v_sanitised[ring.stage] = 0;
        mbarrier_arrive(shared_address(&state.assigned[ring.stage]));
    }
    __syncwarp();
    step<ASSIGNMENT_SLOTS>(ring);
}

/* Announces an assignment that all lanes have. */
template <flash_config_t C>
static __device__ __forceinline__ void announce(const assignment_of<C> &next, announcer_t &to) {
    announce_of_lane<C>(next, elect_one(), to);
}

/* Returns an assignment that has been awaited. It may be read again until it is released, instead
 * of being kept in registers. */
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
    step<ASSIGNMENT_SLOTS>(ring);
}

/* Waits for an assignment, reads it and releases its slot. */
template <flash_config_t C>
static __device__ __forceinline__ assignment_of<C> take_assignment(ring_t &ring) {
    const assignment_of<C> assignment = await_assignment<C>(ring);
    release_assignment<C>(ring);
    return assignment;
}

#endif
