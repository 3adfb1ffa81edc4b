/*
 * A warpgroup that multiplies: the walk of its 64 rows over the blocks of keys, last to first.
 *
 * With overlap the products of neighbouring blocks are under way together: QK^T of this block, then
 * PV of the one before, are issued; the softmax of this block runs beside PV; then the roles move
 * on by one block. With ping_pong the consumers take turns to issue, so that one is in its softmax
 * while the other's products run.
 */
#ifndef FLASH_KERNELS_SM90_CONSUMER_CUH
#define FLASH_KERNELS_SM90_CONSUMER_CUH

#include "sm90/hidden_values.cuh"
#include "sm90/mask.cuh"
#include "sm90/ptx/order.cuh"

/* What a consumer carries from block to block. */
template <flash_config_t C> struct consumer_state {
    score_tile<C> s;
    probability_tile<C> p;
    output_tile<C> o;
    query_fragments<C> q;
    softmax_state_t softmax;
    ring_t k;
    ring_t v;
    ring_t assignments;
    uint32_t q_parity;
};

template <flash_config_t C> static __device__ __forceinline__ void await_turn() {
    if constexpr (C.ping_pong)
        named_barrier_sync(TURN_BARRIER + consumer_number(), 2 * SM90_WARPGROUP_THREADS);
}

template <flash_config_t C> static __device__ __forceinline__ void pass_turn() {
    if constexpr (C.ping_pong) {
        const int next = (consumer_number() + 1) % consumers<C>;
        named_barrier_arrive(TURN_BARRIER + next, 2 * SM90_WARPGROUP_THREADS);
    }
}

/* The turn that the first consumer waits for at first. */
template <flash_config_t C> static __device__ __forceinline__ void start_turns() {
    if (consumer_number() == consumers<C> - 1)
        pass_turn<C>();
}

template <flash_config_t C> static __device__ __forceinline__ void await_k(consumer_state<C> &x) {
    wait_full(block_state<C>().k_full[x.k.stage], x.k.parity);
}

template <flash_config_t C> static __device__ __forceinline__ void await_v(consumer_state<C> &x) {
    wait_full(block_state<C>().v_full[x.v.stage], x.v.parity);
}

/* Gives K back, and Q after the last block. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_scores(consumer_state<C> &x, bool is_last) {
    block_state_t &state = block_state<C>();
    pin_accumulators(x.s.s);
    release(state.k_empty[x.k.stage]);
    if constexpr (!q_in_registers<C>)
        release_if(is_last, state.q_empty);
    step<C.n_stages>(x.k);
}

template <flash_config_t C>
static __device__ __forceinline__ void finish_output(consumer_state<C> &x) {
    pin_accumulators(x.o.o);
    release(block_state<C>().v_empty[x.v.stage]);
    step<C.n_stages>(x.v);
}

/* Issues QK^T of a tile's first block, whose Q has just arrived. */
template <flash_config_t C>
static __device__ __forceinline__ void start_tile(consumer_state<C> &x) {
    wait_full(block_state<C>().q_full, x.q_parity);
    x.q_parity ^= 1;
    await_k<C>(x);
    if constexpr (q_in_registers<C>) {
        load_queries<C>(x.q);
        release(block_state<C>().q_empty);
    }
    issue_scores<C>(x.s, x.q, x.k.stage);
}

/* The first block of the walk, whose QK^T is done. */
template <flash_config_t C>
static __device__ __forceinline__ void first_block(const flash_params_t &params,
                                                   const query_tile_t &tile,
                                                   const score_unit_t &unit, consumer_state<C> &x) {
    const int32_t block = tile.block_end - 1;
    x.softmax = empty_softmax();
    finish_scores<C>(x, block == tile.block_begin);
    cap_scores<C>(x.s, unit);
    if (is_cut(tile, block))
        mask_scores<C>(x.s, params, tile, block);
    raise_max<C>(x.softmax, x.s, unit);
    exponentiate<C>(x.s, x.softmax, unit);
    round_probabilities<C>(x.p, x.s);
}

/* Each block after the first; P of the block before is still to be multiplied. CUT: some row may
 * not see some key of it. FIXED: the maxima stay. */
template <flash_config_t C, bool CUT, bool FIXED>
static __device__ __forceinline__ void
next_block(const flash_params_t &params, const query_tile_t &tile, const score_unit_t &unit,
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
    await_turn<C>();
    issue_scores<C>(s, x.q, x.k.stage);
    if constexpr (C.overlap) {
        await_v<C>(x);
        issue_output<C>(x.o, x.p, x.v.stage);
        pass_turn<C>();
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
        complete_first(x.softmax.sum[0], x.softmax.sum[1], q_tile());
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
process_blocks(const flash_params_t &params, const query_tile_t &tile, const score_unit_t &unit,
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
