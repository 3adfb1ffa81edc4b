/*
 * A warpgroup that multiplies: the walk of its 64 rows over the blocks of keys, last to first.
 *
 * With overlap the products of neighbouring blocks are under way together: QK^T of this block, then
 * PV of the one before, are issued; the softmax of this block runs beside PV; then the roles move
 * on by one block. With ping_pong the consumers take turns to issue, so that one is in its softmax
 * while the other's products run. Without it each has a walk of its own under a mask: see walk.cuh.
 */
#ifndef FLASH_KERNELS_SM90_CONSUMER_CUH
#define FLASH_KERNELS_SM90_CONSUMER_CUH

#include "sm90/hidden_values.cuh"
#include "sm90/mask.cuh"
#include "sm90/ptx/order.cuh"
#include "sm90/walk.cuh"

/* What a consumer carries from block to block. */
template <flash_config_t C> struct consumer_state {
    score_tile<C> s;
    probability_tile<C> p;
    output_tile<C> o;
    query_fragments<C> q;
    softmax_state_t softmax;
    ring_t q_place;
    ring_t k;
    ring_t v;
    ring_t assignments;
    walk_t walk; /* over the tile that was started last */
    uint32_t o_parity;
    int number; /* of this warpgroup among the consumers */
};

template <flash_config_t C>
static __device__ __forceinline__ void await_turn(const consumer_state<C> &x) {
    if constexpr (C.ping_pong)
        named_barrier_sync(TURN_BARRIER + x.number, 2 * SM90_WARPGROUP_THREADS);
}

template <flash_config_t C>
static __device__ __forceinline__ void pass_turn(const consumer_state<C> &x) {
    if constexpr (C.ping_pong) {
        const int next = x.number + 1 == consumers<C> ? 0 : x.number + 1;
        named_barrier_arrive(TURN_BARRIER + next, 2 * SM90_WARPGROUP_THREADS);
    }
}

/* The turn that the first consumer waits for at first. */
template <flash_config_t C>
static __device__ __forceinline__ void start_turns(const consumer_state<C> &x) {
    if (x.number == consumers<C> - 1)
        pass_turn<C>(x);
}

template <flash_config_t C> static __device__ __forceinline__ void await_k(consumer_state<C> &x) {
    wait_full(block_state<C>().k_full[x.k.stage], x.k.parity);
}

template <flash_config_t C> static __device__ __forceinline__ void await_v(consumer_state<C> &x) {
    wait_full(block_state<C>().v_full[x.v.stage], x.v.parity);
}

template <flash_config_t C>
static __device__ __forceinline__ int q_part(const consumer_state<C> &x) {
    return q_parts<C> > 1 ? x.number : 0;
}

template <flash_config_t C>
static __device__ __forceinline__ void release_queries(consumer_state<C> &x, bool done) {
    ring_t next = x.q_place;
    release_if(done, block_state<C>().q_empty[x.q_place.stage][q_part<C>(x)]);
    step<q_places<C>>(next);
    x.q_place = done ? next : x.q_place;
}

/* Issues QK^T of the next block. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_block_scores(consumer_state<C> &x) {
    const uint32_t tile = q_tile<C>(x.q_place.stage);
    issue_scores<C>(x.s, x.q, tile + x.number * SM90_WARPGROUP_ROWS * panel_row_bytes, x.k.stage);
}

/* Gives K back, and Q after the last block. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_scores(consumer_state<C> &x, bool is_last) {
    block_state_t &state = block_state<C>();
    pin_accumulators(x.s.s);
    release(state.k_empty[x.k.stage]);
    if constexpr (!q_in_registers<C>)
        release_queries<C>(x, is_last);
    step<k_stages<C>>(x.k);
}

template <flash_config_t C>
static __device__ __forceinline__ void finish_output(consumer_state<C> &x) {
    pin_accumulators(x.o.o);
    release(block_state<C>().v_empty[x.v.stage]);
    step<v_stages<C>>(x.v);
}

/* Issues QK^T of a tile's first block, whose Q has just arrived. */
template <flash_config_t C>
static __device__ __forceinline__ void start_tile(consumer_state<C> &x) {
    block_state_t &state = block_state<C>();
    wait_full(state.q_full[x.q_place.stage][q_part<C>(x)], x.q_place.parity);
    skip_last<C, k_stages<C>>(x.walk, state.k_full, state.k_empty, x.k);
    await_k<C>(x);
    if constexpr (q_in_registers<C>) {
        load_queries<C>(x.q);
        step<q_places<C>>(x.q_place);
    }
    issue_block_scores<C>(x);
    if constexpr (frees_q_at_once<C>) {
        async_proxy_fence(); /* of the fragments' loads and what TMA writes there next */
        release(state.q_empty[0][0]);
    }
}

/* The first block of the walk, whose QK^T is done. */
template <flash_config_t C>
static __device__ __forceinline__ void first_block(const flash_params_t &params,
                                                   const tile_of<C> &tile, const score_unit_t &unit,
                                                   consumer_state<C> &x) {
    block_state_t &state = block_state<C>();
    const int32_t block = tile.block_end - 1;
    finish_scores<C>(x, block == tile.block_begin);
    skip_last<C, v_stages<C>>(x.walk, state.v_full, state.v_empty, x.v);
    cap_scores<C>(x.s, unit);
    if (is_cut(tile, block))
        mask_scores<C>(x.s, params, tile, block);
    x.softmax = start_softmax<C>(x.s);
    exponentiate<C>(x.s, x.softmax, unit);
    round_probabilities<C>(x.p, x.s);
}

/* Each block after the first; P of the block before is still to be multiplied. CUT: some row may
 * not see some key of it. FIXED: the maxima stay. */
template <flash_config_t C, bool CUT, bool FIXED>
static __device__ __forceinline__ void next_block(const flash_params_t &params,
                                                  const tile_of<C> &tile, const score_unit_t &unit,
                                                  consumer_state<C> &x, int32_t block) {
    rescale_t past;
    score_tile<C> &s = x.s;
    if constexpr (!C.overlap) {
        await_v<C>(x);
        issue_output<C>(x.o, x.p, x.v.stage);
        wgmma_wait<0>();
        finish_output<C>(x);
    }
    await_k<C>(x);
    await_turn<C>(x);
    issue_block_scores<C>(x);
    if constexpr (C.overlap) {
        await_v<C>(x);
        issue_output<C>(x.o, x.p, x.v.stage);
        pass_turn<C>(x);
    }
    wgmma_wait<C.overlap ? 1 : 0>();
    finish_scores<C>(x, block == tile.block_begin);
    cap_scores<C>(s, unit);
    if constexpr (CUT)
        mask_scores<C>(s, params, tile, block);
    if constexpr (!FIXED)
        past = raise_max<C>(x.softmax, s, unit);
    exponentiate<C>(s, x.softmax, unit);
    if constexpr (C.overlap) {
        complete_first(x.softmax.sum[0], x.softmax.sum[1], q_tile<C>(0));
        wgmma_wait<0>();
        finish_output<C>(x);
    }
    if constexpr (!FIXED)
        rescale_output<C>(x.o, past);
    round_probabilities<C>(x.p, s);
}

/* All blocks of a tile that has at least one, but for PV of the last. FIXED: the maxima stay in
 * blocks that are seen whole. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void
process_blocks(const flash_params_t &params, const tile_of<C> &tile, const score_unit_t &unit,
               consumer_state<C> &x) {
    int32_t block = tile.block_end - 2;
    first_block<C>(params, tile, unit, x);
    if constexpr (has_mask<C>)
#pragma unroll 1
        for (; block >= max(tile.whole_end, tile.block_begin); --block)
            next_block<C, true, false>(params, tile, unit, x, block);
    const int32_t whole_begin = has_window<C> ? tile.whole_begin : tile.block_begin;
    if (block >= whole_begin) {
#pragma unroll 1
        for (; block >= whole_begin; --block)
            next_block<C, false, FIXED>(params, tile, unit, x, block);
        if constexpr (FIXED)
            require_reference(x.softmax);
    }
    if constexpr (has_window<C>)
#pragma unroll 1
        for (; block >= tile.block_begin; --block)
            next_block<C, true, false>(params, tile, unit, x, block);
}

#endif
