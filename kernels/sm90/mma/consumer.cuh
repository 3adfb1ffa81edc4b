/*
 * A consumer is a warpgroup that multiplies. Its 64 rows go over a tile's blocks of keys from the
 * last to the first. consumer_tiles.cuh has the way from tile to tile.
 *
 * With overlap the products of neighbouring blocks are under way together: QK^T of block j, then PV
 * of block j + 1, are issued, and the softmax of block j runs beside that PV.
 *
 *     tensor cores   | QK^T j | PV j+1      | QK^T j-1 | PV j        | ...
 *     other units             | softmax j   |          | softmax j-1 | ...
 *
 * With ping_pong the consumers take turns to issue, so that one is in its softmax while another's
 * products run. Without it each consumer may leave out blocks under a mask: see walk.cuh.
 */
#ifndef FLASH_KERNELS_SM90_MMA_CONSUMER_CUH
#define FLASH_KERNELS_SM90_MMA_CONSUMER_CUH

#include "sm90/mma/products.cuh"
#include "sm90/mma/tile_bias.cuh"
#include "sm90/mma/walk.cuh"
#include "sm90/ptx/order.cuh"
#include "sm90/softmax/holes.cuh"
#include "sm90/softmax/mask.cuh"
#include "sm90/softmax/softmax.cuh"

struct no_scores {};

template <flash_config_t C>
using next_scores = std::conditional_t<looks_ahead<C>, score_tile<C>, no_scores>;

/* This is what a consumer carries from block to block. */
template <flash_config_t C> struct consumer_state {
    score_tile<C> s;
    [[no_unique_address]] next_scores<C> next; /* of the block after it */
    probability_tile<C> p;
    output_tile<C> o;
    [[no_unique_address]] second_level_of<C> second;
    query_fragments<C> q;
    softmax_state_t softmax;
    ring_t q_slot;
    ring_t k;
    ring_t v;
    ring_t assignments;
    walk_t walk; /* over the tile that was started last */
    uint32_t o_parity;
    int number; /* of this warpgroup among the consumers */
    [[no_unique_address]] unhidden_columns<C> unhidden;
};

template <flash_config_t C>
static __device__ __forceinline__ void await_turn(const consumer_state<C> &consumer) {
    if constexpr (C.ping_pong)
        named_barrier_sync(TURN_BARRIER + consumer.number, 2 * SM90_WARPGROUP_THREADS);
}

template <flash_config_t C>
static __device__ __forceinline__ void pass_turn(const consumer_state<C> &consumer) {
    if constexpr (C.ping_pong) {
        const int next = consumer.number + 1 == consumers<C> ? 0 : consumer.number + 1;
        named_barrier_arrive(TURN_BARRIER + next, 2 * SM90_WARPGROUP_THREADS);
    }
}

/* Gives the first consumer its first turn. */
template <flash_config_t C>
static __device__ __forceinline__ void start_turns(const consumer_state<C> &consumer) {
    if (consumer.number == consumers<C> - 1)
        pass_turn<C>(consumer);
}

template <flash_config_t C>
static __device__ __forceinline__ void await_k(consumer_state<C> &consumer) {
    wait_keys<C>(block_state<C>().k_full[consumer.k.stage], consumer.k.parity);
}

template <flash_config_t C>
static __device__ __forceinline__ void await_v(consumer_state<C> &consumer) {
    wait_keys<C>(block_state<C>().v_full[consumer.v.stage], consumer.v.parity);
}

template <flash_config_t C>
static __device__ __forceinline__ int q_part(const consumer_state<C> &consumer) {
    return q_parts<C> > 1 ? consumer.number : 0;
}

template <flash_config_t C>
static __device__ __forceinline__ void release_queries(consumer_state<C> &consumer, bool done) {
    ring_t next = consumer.q_slot;
    release_if(done, block_state<C>().q_empty[consumer.q_slot.stage][q_part<C>(consumer)]);
    step<q_slots<C>>(next);
    consumer.q_slot = done ? next : consumer.q_slot;
}

/* Issues QK^T of the next block. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_block_scores(score_tile<C> &s,
                                                          consumer_state<C> &consumer) {
    const uint32_t tile = q_tile<C>(consumer.q_slot.stage);
    if constexpr (has_parts_in_s<C>) /* which were in these registers */
        drop_accumulators(s.s);
    issue_scores<C>(s, consumer.q, tile + consumer.number * SM90_WARPGROUP_ROWS * SM90_PANEL_BYTES,
                    consumer.k.stage);
}

/* Releases K, and Q after the last block, when QK^T of a block is done. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_scores(score_tile<C> &s, consumer_state<C> &consumer,
                                                     bool is_last) {
    block_state_t &state = block_state<C>();
    pin_accumulators(s.s);
    release(state.k_empty[consumer.k.stage]);
    if constexpr (!q_in_registers<C>)
        release_queries<C>(consumer, is_last);
    step<k_stages<C>>(consumer.k);
}

/* Issues PV of the block before. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_block_output(consumer_state<C> &consumer) {
    if constexpr (multiplies_e4m3<C>)
        issue_first_parts<C>(consumer.second, consumer.p, consumer.v.stage);
    else
        issue_output<C>(consumer.o, consumer.p, consumer.v.stage);
}

/* Releases V of a block, all of whose products are done. */
template <flash_config_t C>
static __device__ __forceinline__ void give_back_v(consumer_state<C> &consumer) {
    release(block_state<C>().v_empty[consumer.v.stage]);
    step<v_stages<C>>(consumer.v);
}

/* Takes PV of a block, and releases V. Of several parts the first is done, else all of it. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_output(consumer_state<C> &consumer) {
    if constexpr (multiplies_e4m3<C>)
        add_second_level<C>(consumer.o, consumer.second, consumer.p, consumer.v.stage);
    else
        pin_accumulators(consumer.o.o);
    give_back_v<C>(consumer);
}

/* Waits for a tile's Q, and issues QK^T of its first block. */
template <flash_config_t C>
static __device__ __forceinline__ void start_tile(consumer_state<C> &consumer) {
    block_state_t &state = block_state<C>();
    wait_full(state.q_full[consumer.q_slot.stage][q_part<C>(consumer)], consumer.q_slot.parity);
    skip_last<C, k_stages<C>>(consumer.walk, state.k_full, state.k_empty, consumer.k);
    await_k<C>(consumer);
    if constexpr (q_in_registers<C>) {
        load_queries<C>(consumer.q);
        step<q_slots<C>>(consumer.q_slot);
    }
    issue_block_scores<C>(consumer.s, consumer);
    if constexpr (frees_q_at_once<C>) {
        async_proxy_fence(); /* of the fragments' loads and what TMA writes there next */
        release(state.q_empty[0][0]);
    }
}

/* ---- Blocks ---- */

/* Returns where the blocks end that use a fixed reference, under a mask. Rows that see few keys of
 * the cut blocks get a low reference from these, which P of fp16 can outgrow: where one more block
 * costs little, it raises the reference too. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t fixed_end(const tile_of<C> &tile) {
    constexpr int32_t many_blocks = 8;
    const bool one_more =
        reference_margin<C> > 0 && tile.whole_end - tile.block_begin >= many_blocks;
    return max(tile.whole_end - one_more, tile.block_begin);
}

/* Computes P of the walk's first block, whose QK^T is done, and returns it. FIXED: as in
 * process_blocks(). */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ block_visit<C>
first_block(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
            float slope, consumer_state<C> &consumer) {
    block_state_t &state = block_state<C>();
    const block_visit<C> visited = announced_visit<C>(consumer.k, tile.block_end - 1);
    if constexpr (hides_holes<C>)
        consumer.unhidden = take_holes_of_stage<C>(params.bias, consumer.k.stage);
    finish_scores<C>(consumer.s, consumer, block_index(visited) == tile.block_begin);
    skip_last<C, v_stages<C>>(consumer.walk, state.v_full, state.v_empty, consumer.v);
    cap_scores<C, FIXED>(consumer.s, unit);
    add_tile_bias<C>(consumer.s, params, tile, slope, unit, visited);
    if constexpr (hides_holes<C>)
        hide_holes<C>(consumer.s, params.bias, consumer.unhidden);
    if (is_cut(tile, block_index(visited)))
        mask_scores<C>(consumer.s, params, tile, block_index(visited));
    if constexpr (has_bias<C>) {
        consumer.softmax = softmax_state_t{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        raise_tile_max<C>(consumer.softmax, consumer.s, params, tile, slope, unit, visited);
    } else {
        consumer.softmax = start_softmax<C>(consumer.s);
    }
    exponentiate<C>(consumer.s, consumer.softmax, softmax_unit<C>(params, unit));
    round_probabilities<C>(consumer.p, consumer.s);
    return visited;
}

/* Computes each block after the first, when P of the block before is still to be multiplied. CUT:
 * some row may not see some key of the block, or the kernel decides at run time. FIXED: the
 * reference maxima stay unless it is CUT. expected: the block's number, unless the kernel has bias.
 * Returns it. */
template <flash_config_t C, bool CUT, bool FIXED>
static __device__ __forceinline__ block_visit<C>
next_block(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
           float slope, consumer_state<C> &consumer, int32_t expected) {
    constexpr bool raises_max = CUT || !FIXED;
    rescale_t past;
    score_tile<C> &s = consumer.s;
    if constexpr (!C.overlap) {
        await_v<C>(consumer);
        issue_block_output<C>(consumer);
        wgmma_wait<0>();
        finish_output<C>(consumer);
    }
    await_k<C>(consumer);
    await_turn<C>(consumer);
    issue_block_scores<C>(consumer.s, consumer);
    const block_visit<C> visited = announced_visit<C>(consumer.k, expected);
    if constexpr (C.overlap) {
        await_v<C>(consumer);
        issue_block_output<C>(consumer);
        pass_turn<C>(consumer);
    }
    wgmma_wait<C.overlap ? 1 : 0>();
    if constexpr (hides_holes<C>)
        consumer.unhidden = take_holes_of_stage<C>(params.bias, consumer.k.stage);
    finish_scores<C>(consumer.s, consumer, block_index(visited) == tile.block_begin);
    if constexpr (raises_max) {
        cap_scores<C, FIXED>(s, unit);
        add_tile_bias<C>(s, params, tile, slope, unit, visited);
        if constexpr (hides_holes<C>)
            hide_holes<C>(s, params.bias, consumer.unhidden);
        if constexpr (CUT)
            if (!looks_for_cuts<C, FIXED> || is_cut(tile, block_index(visited)))
                mask_scores<C>(s, params, tile, block_index(visited));
        past = raise_tile_max<C>(consumer.softmax, s, params, tile, slope, unit, visited);
        exponentiate<C>(s, consumer.softmax, softmax_unit<C>(params, unit));
    } else {
        cap_and_exponentiate<C>(s, consumer.softmax, unit);
    }
    if constexpr (C.overlap) {
        complete_first(consumer.softmax.sum[0], consumer.softmax.sum[1], q_tile<C>(0));
        wgmma_wait<0>();
        finish_output<C>(consumer);
    }
    if constexpr (raises_max)
        rescale_output_if_needed<C>(consumer.o, past);
    round_probabilities<C>(consumer.p, s);
    return visited;
}

/* Computes all blocks of a tile that has at least one, but for PV of the last, in kernels with
 * bias. read_tile(): the tile as the consumer walks over it, from shared memory; there are no
 * registers to keep it from block to block. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void
process_shown_blocks(const flash_params_t &params, const R &read_tile, const score_units<C> &unit,
                     consumer_state<C> &consumer) {
    const float slope = load_tile_slope<C>(params, read_tile());
    block_visit<C> block = first_block<C, false>(params, read_tile(), unit, slope, consumer);
#pragma unroll 1
    while (__any_sync(0xffffffffu, block_index(block) > read_tile().block_begin))
        block = next_block<C, true, false>(params, read_tile(), unit, slope, consumer, 0);
}

/* Computes the blocks from `block` down to `end`. */
template <flash_config_t C, bool CUT, bool FIXED>
static __device__ __forceinline__ void
process_down_to(int32_t end, int32_t &block, const flash_params_t &params, const tile_of<C> &tile,
                const score_units<C> &unit, consumer_state<C> &consumer) {
    constexpr float no_slope = 0.0f;
#pragma unroll 1
    for (; block >= end; --block)
        next_block<C, CUT, FIXED>(params, tile, unit, no_slope, consumer, block);
}

/* Computes the blocks after the first, from `block` on: those that a mask cuts at its end, those
 * that all rows see whole, and those that a window cuts at its begin, by the loop of the first. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void
process_parts(int32_t block, const flash_params_t &params, const tile_of<C> &tile,
              const score_units<C> &unit, consumer_state<C> &consumer) {
    const int32_t whole_begin = has_window<C> ? tile.whole_begin : tile.block_begin;
    int32_t cut_end = has_mask<C> ? fixed_end<C>(tile) : tile.block_end;
#pragma unroll 1
    while (true) {
        if constexpr (has_mask<C>)
            process_down_to<C, true, FIXED>(cut_end, block, params, tile, unit, consumer);
        if (block >= whole_begin) {
            process_down_to<C, false, FIXED>(whole_begin, block, params, tile, unit, consumer);
            if constexpr (FIXED)
                require_reference(consumer.softmax);
        }
        if (!has_window<C> || block < tile.block_begin)
            break;
        cut_end = tile.block_begin;
    }
}

/* Returns the number of the tile's last block; where consumers count, as if those that are left out
 * were not there. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t last_of_walk(const tile_of<C> &tile) {
    if constexpr (counts_blocks<C>)
        return tile.block_begin + tile.whole_begin - 1;
    else
        return tile.block_end - 1;
}

/* Does the same in the other kernels. FIXED: the reference maxima stay in blocks that each row sees
 * whole. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void
process_blocks(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
               consumer_state<C> &consumer) {
    constexpr float no_slope = 0.0f;
    int32_t block = last_of_walk<C>(tile) - 1;
    first_block<C, FIXED>(params, tile, unit, no_slope, consumer);
    if constexpr (looks_for_cuts<C, FIXED>)
        process_down_to<C, true, FIXED>(tile.block_begin, block, params, tile, unit, consumer);
    else
        process_parts<C, FIXED>(block, params, tile, unit, consumer);
}

#endif
