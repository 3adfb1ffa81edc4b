/*
 * The warp that brings Q and takes O away, so that the warp that loads K and V runs ahead of both.
 * The consumers leave a tile's O in shared memory and go on; this warp hands it to TMA, which is
 * slow to take it while it loads, and then gives the place back.
 *
 * When they begin a tile, the consumers say where O of the tile before lies: a warpgroup's address,
 * or 0 where there is none, for it was stored from registers.
 */
#ifndef FLASH_KERNELS_SM90_CARRIER_CUH
#define FLASH_KERNELS_SM90_CARRIER_CUH

#include "sm90/box.cuh"
#include "sm90/scheduler.cuh"

template <flash_config_t C> struct carrier_of {
    tile_of<C> previous;
    ring_t q;
    uint32_t parity; /* of o_staged */
};

/* By one thread: one of q_parts into a place of Q. */
template <flash_config_t C>
static __device__ __forceinline__ void load_part(const sm90_params_t &params, const tile_of<C> &t,
                                                 int part, int place) {
    const int32_t first_row = part * q_box_rows<C>;
    const uint32_t barrier = shared_address(&block_state<C>().q_full[place][part]);
    const uint32_t shared = q_tile<C>(place) + first_row * panel_row_bytes;
    tma_box_t box = query_box<C>(t, t.row_begin + first_row, params.entry_tokens.q);
    mbarrier_arrive_expect(barrier, q_bytes<C> / q_parts<C>);
#pragma unroll
    for (int i = 0; i < panels<C>; ++i, box.column += SM90_PANEL_ELEMENTS)
        tma_load<has_varlen<C>>(shared + i * q_panel_bytes<C>, &params.q, box, barrier,
                                l2_evict_first);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_q(const sm90_params_t &params, const tile_of<C> &t,
                                              carrier_of<C> &carrier) {
    const int place = carrier.q.stage;
#pragma unroll 1
    for (int part = 0; part < q_parts<C>; ++part) {
        mbarrier_wait(shared_address(&block_state<C>().q_empty[place][part]), carrier.q.parity ^ 1);
        if (elect_one())
            load_part<C>(params, t, part, place);
        __syncwarp();
    }
    step<q_places<C>>(carrier.q);
}

/* By one thread. Rows and columns beyond the tensor's ends are not written. */
template <flash_config_t C>
static __device__ __forceinline__ void
store_staged(const sm90_params_t &params, const tile_of<C> &t, int consumer, uint32_t place) {
    const int32_t row = t.row_begin + consumer * SM90_WARPGROUP_ROWS;
    tma_box_t box = query_box<C>(t, row, params.entry_tokens.o);
    if (place == 0 || row >= sequence_of<C>(params.problem, t).len_q)
        return;
#pragma unroll
    for (int i = 0; i < panels<C>; ++i, box.column += SM90_PANEL_ELEMENTS)
        tma_store<has_varlen<C>>(&params.o, box, place + i * output_panel_bytes<C>);
}

/* O of the tile before this one. */
template <flash_config_t C>
static __device__ __forceinline__ void store_previous(const sm90_params_t &params,
                                                      carrier_of<C> &carrier) {
    block_state_t &state = block_state<C>();
#pragma unroll 1
    for (int i = 0; i < consumers<C>; ++i) {
        wait_full(state.o_staged[i], carrier.parity);
        if (elect_one())
            store_staged<C>(params, carrier.previous, i, *(volatile uint32_t *)&state.staged[i]);
    }
    if (elect_one()) {
        tma_store_commit();
        tma_store_wait_read();
    }
    __syncwarp();
    release(place_of_o<C> == OUTPUT_IN_Q ? state.q_empty[0][0] : state.o_left);
    carrier.parity ^= 1;
}

/* Where Q's place is free as soon as a tile has begun, the next tile's Q comes before what O of the
 * tile before waits for. Tiles without keys, and the end of the pass, come after all that the
 * consumers have handed over: they hand over the next thing when the next Q has come. */
template <flash_config_t C>
static __device__ __forceinline__ void carry_pass(const sm90_params_t &params,
                                                  carrier_of<C> &carrier, ring_t &assignments) {
    constexpr bool q_first = frees_q_at_once<C>;
    tile_of<C> begun = {};
    bool has_begun = false, is_over = false;
    while (!is_over) {
        const assignment_of<C> assignment = take_assignment<C>(assignments);
        const bool has_keys = has_blocks(assignment.tile);
        if (has_keys)
            load_q<C>(params, assignment.tile, carrier);
        if (has_staged_output<C> && (q_first ? has_begun : has_keys))
            store_previous<C>(params, carrier);
        carrier.previous = q_first ? begun : assignment.tile;
        begun = assignment.tile;
        has_begun = has_keys;
        is_over = assignment.round < 0;
    }
}

#endif
