/*
 * The Q-load/O-store warp loads the Q of each tile and hands its O to TMA, so that the KV-load warp
 * runs ahead of both. The consumers stage a tile's O in shared memory and go on; this warp starts
 * its store, for which TMA takes long while it loads, and then gives the shared memory back.
 *
 * When the consumers begin a tile, they say where the O of the tile before is staged: an address
 * per warpgroup, or 0 where the warpgroup has stored its O from registers.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_Q_LOAD_O_STORE_CUH
#define FLASH_KERNELS_SM90_LOAD_Q_LOAD_O_STORE_CUH

#include "sm90/load/box.cuh"
#include "sm90/schedule/schedule.cuh"

template <flash_config_t C> struct q_o_mover {
    tile_of<C> previous;
    ring_t q;
    uint32_t parity; /* of o_staged */
};

/* Returns the barrier that counts the bytes of one of q_parts. */
template <flash_config_t C>
static __device__ __forceinline__ const uint64_t &q_arrival(int slot, int part) {
    if constexpr (converts<C>)
        return conversion_state<C>().q_landed[slot][part];
    else
        return block_state<C>().q_full[slot][part];
}

/* Loads a box of Q, with all columns, into the slot's rows from `row` on. */
template <flash_config_t C>
static __device__ __forceinline__ void load_box(const sm90_params_t &params, const tile_of<C> &tile,
                                                int32_t row, uint32_t slot, uint32_t barrier) {
    const uint32_t shared = slot + row * SM90_PANEL_BYTES;
    const int32_t query = tile.row_begin + (row >> pack_shift<C>(params.problem));
    tma_box_t box = query_box<C>(tile, query, params.entry_tokens.q);
#pragma unroll
    for (int i = 0; i < q_panels<C>; ++i, box.column += panel_elements<C>)
        tma_load<has_varlen<C>>(shared + i * q_panel_bytes<C>, &params.q, box, barrier,
                                l2_evict_first);
}

/* Loads one of q_parts into a slot of Q, in one thread. */
template <flash_config_t C>
static __device__ __forceinline__ void load_part(const sm90_params_t &params,
                                                 const tile_of<C> &tile, int part, int slot) {
    const uint32_t barrier = shared_address(&q_arrival<C>(slot, part));
    mbarrier_arrive_expect(barrier, q_bytes<C> / q_parts<C>);
#pragma unroll 1
    for (int32_t row = part * q_part_rows<C>; row < (part + 1) * q_part_rows<C>;
         row += q_box_rows<C>)
        load_box<C>(params, tile, row, q_tile<C>(slot), barrier);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_q(const sm90_params_t &params, const tile_of<C> &tile,
                                              q_o_mover<C> &mover) {
    const int slot = mover.q.stage;
#pragma unroll 1
    for (int part = 0; part < q_parts<C>; ++part) {
        mbarrier_wait(shared_address(&block_state<C>().q_empty[slot][part]), mover.q.parity ^ 1);
        if (elect_one())
            load_part<C>(params, tile, part, slot);
        __syncwarp();
    }
    step<q_slots<C>>(mover.q);
}

/* Stores a consumer's O, staged at `shared`, in one thread; 0: there is none. Rows and columns
 * beyond the tensor's ends are not written. */
template <flash_config_t C>
static __device__ __forceinline__ void
store_staged(const sm90_params_t &params, const tile_of<C> &tile, int consumer, uint32_t shared) {
    const int32_t query = tile.row_begin + consumer * warpgroup_queries<C>(params.problem);
    tma_box_t box = query_box<C>(tile, query, params.entry_tokens.o);
    if (shared == 0 || query >= sequence_of<C>(params.problem, tile).len_q)
        return;
#pragma unroll
    for (int i = 0; i < output_panels<C>; ++i, box.column += o_panel_elements<C>)
        tma_store<has_varlen<C>>(&params.o, box, shared + i * output_panel_bytes<C>);
}

/* Stores the O of the tile before this one. */
template <flash_config_t C>
static __device__ __forceinline__ void store_previous(const sm90_params_t &params,
                                                      q_o_mover<C> &mover) {
    block_state_t &state = block_state<C>();
#pragma unroll 1
    for (int i = 0; i < consumers<C>; ++i) {
        wait_full(state.o_staged[i], mover.parity);
        if (elect_one())
            store_staged<C>(params, mover.previous, i, *(volatile uint32_t *)&state.staged_o[i]);
    }
    if (elect_one()) {
        tma_store_commit();
        tma_store_wait_read();
    }
    __syncwarp();
    release(staging_of_o<C> == STAGED_IN_Q ? state.q_empty[0][0] : state.o_left);
    mover.parity ^= 1;
}

/* Loads Q and stores O of all tiles of a pass. Where Q's slot is free as soon as a tile has begun,
 * the next tile's Q is loaded before the O of the tile before is waited for. Tiles without keys,
 * and the end of the pass, come after all that the consumers have handed over: they hand over the
 * next O when the next Q has arrived. Returns what ended the pass. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t load_q_store_o_pass(const sm90_params_t &params,
                                                              q_o_mover<C> &mover,
                                                              ring_t &assignments) {
    constexpr bool q_first = frees_q_at_once<C>;
    tile_of<C> begun = {};
    bool has_begun = false;
    while (true) {
        const assignment_of<C> assignment = take_assignment<C>(assignments);
        const bool has_keys = has_blocks(assignment.tile);
        if (has_keys)
            load_q<C>(params, assignment.tile, mover);
        if (stages_o<C> && (q_first ? has_begun : has_keys))
            store_previous<C>(params, mover);
        mover.previous = q_first ? begun : assignment.tile;
        begun = assignment.tile;
        has_begun = has_keys;
        if (assignment.index < 0)
            return assignment.index;
    }
}

#endif
