/*
 * O leaves through shared memory: a consumer stages its 64 rows where derive.cuh says, and the
 * Q-load/O-store warp hands them to TMA (load/q_load_o_store.cuh).
 */
#ifndef FLASH_KERNELS_SM90_STORE_STAGED_CUH
#define FLASH_KERNELS_SM90_STORE_STAGED_CUH

#include "sm90/mma/consumer.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/ptx/stmatrix.cuh"

/* Waits until no consumer reads the stage of V any more in which this consumer's O is staged, and
 * returns where it begins. The first consumer's stage comes after those that are left to the next
 * tile's first blocks, and so on. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t await_v_stage(const consumer_state<C> &consumer) {
    ring_t ring = consumer.v;
#pragma unroll
    for (int i = 0; i < v_stages_beside_o<C>; ++i)
        step<v_stages<C>>(ring);
#pragma unroll
    for (int i = 1; i < consumers<C>; ++i)
        if (i <= consumer.number && i % outputs_per_v_stage<C> == 0)
            step<v_stages<C>>(ring);
    wait_full(block_state<C>().v_empty[ring.stage], ring.parity ^ 1);
    return v_tile<C>(ring.stage) +
           consumer.number % outputs_per_v_stage<C> * warpgroup_output_bytes<C>;
}

/* Waits until the shared memory is free in which this consumer's O is staged, and what was handed
 * over before is taken. Returns where it begins. Q's slot is free, because the next Q came there
 * when the O before had left. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t await_o_slot(const consumer_state<C> &consumer) {
    if constexpr (staging_of_o<C> == STAGED_IN_Q)
        return q_tile<C>(0) + consumer.number * SM90_WARPGROUP_ROWS * SM90_PANEL_BYTES;
    wait_full(block_state<C>().o_left, consumer.o_parity);
    if constexpr (staging_of_o<C> == STAGED_IN_V)
        return await_v_stage<C>(consumer);
    return v_tile<C>(v_stages<C>) + consumer.number * warpgroup_output_bytes<C>;
}

/* Stages O at `shared`, visible to TMA. */
template <flash_config_t C>
static __device__ __forceinline__ void stage_output(const rounded_output<C> &o, uint32_t shared) {
    const uint32_t rows = shared + warp_row_of_group() * SM90_PANEL_BYTES;
#pragma unroll
    for (int i = 0; i < d_head_v<C> / 16; ++i)
        stmatrix_x4(fragment_row(rows, i, output_panel_bytes<C>), o.w[4 * i], o.w[4 * i + 1],
                    o.w[4 * i + 2], o.w[4 * i + 3]);
    async_proxy_fence();
}

/* Waits until the Q-load/O-store warp has taken what was handed over last, where it does so after
 * it has loaded the next tile's Q: a tile may begin before, and hand over the next thing. */
template <flash_config_t C>
static __device__ __forceinline__ void await_hand_over(const consumer_state<C> &consumer) {
    if constexpr (stages_o<C> && frees_q_at_once<C>)
        wait_full(block_state<C>().o_left, consumer.o_parity ^ 1);
}

/* Tells the Q-load/O-store warp where this consumer's O of the tile before is staged, 0 where it is
 * not. */
template <flash_config_t C>
static __device__ __forceinline__ void hand_over_output(uint32_t shared,
                                                        const consumer_state<C> &consumer) {
    if constexpr (stages_o<C>) {
        block_state_t &state = block_state<C>();
        shared_store_if(threadIdx.x % SM90_WARPGROUP_THREADS == 0,
                        shared_address(&state.staged_o[consumer.number]), shared);
        __syncwarp();
        release(state.o_staged[consumer.number]);
    }
}

#endif
