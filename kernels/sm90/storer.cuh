/*
 * The warp that stores O: the consumers leave a tile's O in shared memory and go on; this warp
 * hands it to TMA, which is slow to take it while it loads, and then gives the place back.
 *
 * When they begin a tile, the consumers say where O of the tile before lies: a warpgroup's address,
 * or 0 where there is none, for it was stored from registers.
 */
#ifndef FLASH_KERNELS_SM90_STORER_CUH
#define FLASH_KERNELS_SM90_STORER_CUH

#include "sm90/ptx/tma.cuh"
#include "sm90/scheduler.cuh"

typedef struct storer {
    query_tile_t previous;
    uint32_t parity; /* of o_staged */
} storer_t;

/* By one thread. Rows and columns beyond the tensor's ends are not written. */
template <flash_config_t C>
static __device__ __forceinline__ void
store_staged(const sm90_params_t &params, const query_tile_t &t, int consumer, uint32_t place) {
    tma_box_t box = {0, t.row_begin + consumer * SM90_WARPGROUP_ROWS, t.head, t.batch_index};
    if (place == 0 || box.row >= params.problem.seqlen_q)
        return;
#pragma unroll
    for (int i = 0; i < panels<C>; ++i, box.column += SM90_PANEL_ELEMENTS)
        tma_store(&params.o, box, place + i * output_panel_bytes<C>);
}

/* O of the tile before this one. */
template <flash_config_t C>
static __device__ __forceinline__ void store_previous(const sm90_params_t &params,
                                                      storer_t &storer) {
    block_state_t &state = block_state<C>();
#pragma unroll 1
    for (int i = 0; i < consumers<C>; ++i) {
        wait_full(state.o_staged[i], storer.parity);
        if (elect_one())
            store_staged<C>(params, storer.previous, i, *(volatile uint32_t *)&state.staged[i]);
    }
    if (elect_one()) {
        tma_store_commit();
        tma_store_wait_read();
    }
    __syncwarp();
    release(place_of_o<C> == OUTPUT_IN_Q ? state.q_empty[0] : state.o_left);
    storer.parity ^= 1;
}

template <flash_config_t C>
static __device__ __forceinline__ void store_pass(const sm90_params_t &params, storer_t &storer,
                                                  ring_t &assignments) {
    for (assignment_t assignment = take_assignment<C>(assignments); assignment.round >= 0;
         assignment = take_assignment<C>(assignments)) {
        if (!has_blocks(assignment.tile))
            continue;
        store_previous<C>(params, storer);
        storer.previous = assignment.tile;
    }
    if (elect_one())
        tma_store_wait();
    __syncwarp();
}

#endif
