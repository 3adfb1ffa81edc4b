/*
 * A block of a backward kernel has in shared memory two tiles that stay while it computes a tile of
 * results, a ring of stages of the two that pass by, and its state:
 *
 *     0                                                          sm90_backward_shared_bytes()
 *     | K    | V    | Q 0 | dO 0 | Q 1 | dO 1 | ...  | (P)         | gradient_state_t |   dK, dV
 *     | Q    | dO   | K 0 | V 0  | K 1 | V 1  | ...                | gradient_state_t |   dQ
 *
 * Behind that come SM90_BACKWARD_SEEN_BYTES where windows hide rows (masks.cuh).
 *
 * Each of the four has barriers of its own: `full`, and in the ring `empty`, which work as
 * block_state.cuh says.
 * With Q of a stage come D and the logarithm of the sum of each of its rows, for which another warp
 * arrives at the same `full`.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_STATE_CUH
#define FLASH_KERNELS_SM90_BACKWARD_STATE_CUH

#include "sm90/backward/derive.cuh"
#include "sm90/block_state.cuh"

enum { SPOILT_WORDS = 4 /* of at most 128 rows */ };

typedef struct gradient_state {
    uint64_t still_full;   /* of Q or K */
    uint64_t still_v_full; /* of dO or V */
    uint64_t full[SM90_BACKWARD_MAX_STAGES], empty[SM90_BACKWARD_MAX_STAGES];
    uint64_t v_full[SM90_BACKWARD_MAX_STAGES], v_empty[SM90_BACKWARD_MAX_STAGES];
    uint64_t p_full, p_empty;
    uint64_t decided;               /* whether there is a second pass */
    uint32_t spoilt;                /* a bit of each warp that needs it (passes.cuh) */
    uint32_t rows[2][SPOILT_WORDS]; /* of a block that have infinities or NaNs (sanitise.cuh) */
    /* only where queries pass by */
    alignas(SM90_BACKWARD_BARRIER_BYTES) float log_sum[SM90_BACKWARD_MAX_STAGES]
                                                      [SM90_BACKWARD_MAX_STEP_ROWS]; /* base 2 */
    float d[SM90_BACKWARD_MAX_STAGES][SM90_BACKWARD_MAX_STEP_ROWS];
} gradient_state_t;

template <flash_config_t C> static __device__ __forceinline__ gradient_state_t &gradient_state() {
    return *(gradient_state_t *)(shared_memory + sm90_backward_shared_bytes(&C) -
                                 sm90_backward_state_bytes(&C));
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t still_tile() {
    return shared_address(shared_memory);
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t still_v_tile() {
    return still_tile<C>() + still_bytes<C>;
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t moving_tile(int stage) {
    return still_v_tile<C>() + still_v_bytes<C> + stage * (moving_bytes<C> + moving_v_bytes<C>);
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t moving_v_tile(int stage) {
    return moving_tile<C>(stage) + moving_bytes<C>;
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t p_slot() {
    return moving_tile<C>(C.n_stages);
}

/* Initialises the block's state, by one thread. All threads must pass __syncthreads() before any
 * of them uses it. */
template <flash_config_t C> static __device__ __forceinline__ void initialize_gradient_state() {
    static_assert(sizeof(gradient_state_t) ==
                      SM90_BACKWARD_BARRIER_BYTES + SM90_BACKWARD_NUMBER_BYTES,
                  "behind the tiles");
    static_assert(C.n_stages <= SM90_BACKWARD_MAX_STAGES, "stages have barriers");
    static_assert(writes_dq<C> || step_rows<C> <= SM90_BACKWARD_MAX_STEP_ROWS, "rows have numbers");
    gradient_state_t &state = gradient_state<C>();
    constexpr int all = gradient_consumers<C> * warpgroup_warps, all_threads = all * warp_threads;
    mbarrier_init(shared_address(&state.still_full), 1);
    mbarrier_init(shared_address(&state.still_v_full), 1);
    for (int i = 0; i < C.n_stages; ++i) {
        mbarrier_init(shared_address(&state.full[i]), writes_dq<C> ? 1 : 2);
        mbarrier_init(shared_address(&state.empty[i]), writes_dq<C> ? all : all_threads);
        mbarrier_init(shared_address(&state.v_full[i]), 1);
        mbarrier_init(shared_address(&state.v_empty[i]), all);
    }
    mbarrier_init(shared_address(&state.p_full), SM90_WARPGROUP_THREADS);
    mbarrier_init(shared_address(&state.p_empty), SM90_WARPGROUP_THREADS);
    mbarrier_init(shared_address(&state.decided), all_threads);
    state.spoilt = 0;
    for (int i = 0; i < 2 * SPOILT_WORDS; ++i)
        state.rows[i / SPOILT_WORDS][i % SPOILT_WORDS] = 0;
    mbarrier_init_fence();
}

/* Gives back the Q or K of a stage, if `done` is true. With Q go numbers of its rows, which
 * ordinary loads have read: every thread arrives there, since racecheck takes the arrival of one
 * lane for that of its own reads only. */
template <flash_config_t C>
static __device__ __forceinline__ void give_back_if(bool done, const uint64_t &empty) {
    if constexpr (writes_dq<C>)
        release_if(done, empty);
    else
        mbarrier_arrive_if(shared_address(&empty), done);
}

template <flash_config_t C>
static __device__ __forceinline__ void give_back(const uint64_t &empty) {
    give_back_if<C>(true, empty);
}

/* Gives n stages back unread. */
template <flash_config_t C>
static __device__ __forceinline__ void skip_stages(ring_t &ring, int32_t n) {
    gradient_state_t &state = gradient_state<C>();
#pragma unroll 1
    for (; n > 0; --n) {
        wait_full(state.full[ring.stage], ring.parity);
        give_back<C>(state.empty[ring.stage]);
        wait_full(state.v_full[ring.stage], ring.parity);
        release(state.v_empty[ring.stage]);
        step<C.n_stages>(ring);
    }
}

#endif
