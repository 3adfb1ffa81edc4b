/*
 * A consumer of a decode block is a warpgroup whose 64 rows go over the blocks of keys of a walk.
 *
 * Over whole blocks the products of neighbours are under way together: QK^T of block n, then PV of
 * block n - 1, are issued, and the softmax of block n runs beside that PV. With ping_pong two
 * consumers take turns to issue, so that one is in its softmax while the other's products run.
 * Blocks that are cut, few at the ends of a sequence and of a piece, go one step after the other.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_CONSUMER_CUH
#define FLASH_KERNELS_SM90_DECODE_CONSUMER_CUH

#include "sm90/decode/bias.cuh"
#include "sm90/decode/parked_block.cuh"
#include "sm90/decode/sanitise_v.cuh"
#include "sm90/fp8/reference.cuh"
#include "sm90/mma/products.cuh"
#include "sm90/ptx/order.cuh"
#include "sm90/softmax/holes.cuh"
#include "sm90/softmax/mask.cuh"
#include "sm90/softmax/softmax.cuh"

/* This is what a consumer carries from block to block. */
template <flash_config_t C> struct row_state {
    score_tile<C> s;
    probability_tile<C> p;
    output_tile<C> o;
    [[no_unique_address]] second_level_of<C> second;
    query_fragments<C> q;
    softmax_state_t softmax;
    ring_t k;
    ring_t v;
    float sink; /* of row lane / 2 of the warp's sixteen */
    int number; /* of this warpgroup among the consumers */
    const sm90_paging_t *paging;
};

template <flash_config_t C> static __device__ __forceinline__ void start_rows(row_state<C> &rows) {
    rows.o = output_tile<C>{};
    rows.softmax = softmax_state_t{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    if constexpr (multiplies_e4m3<C>)
        rows.second.weight[0] = rows.second.weight[1] = 0.0f;
    rows.k = rows.v = ring_t{0, 0};
    rows.number = consumers<C> > 1 ? consumer_number() : 0;
}

/* ---- Turns ---- */

template <flash_config_t C>
static __device__ __forceinline__ void await_turn(const row_state<C> &rows) {
    if constexpr (C.ping_pong)
        named_barrier_sync(TURN_BARRIER + rows.number, 2 * SM90_WARPGROUP_THREADS);
}

template <flash_config_t C>
static __device__ __forceinline__ void pass_turn(const row_state<C> &rows) {
    if constexpr (C.ping_pong)
        named_barrier_arrive(TURN_BARRIER + (rows.number ^ 1), 2 * SM90_WARPGROUP_THREADS);
}

/* ---- Products ---- */

/* Keys that TMA brings need no fence (wait_keys()): rows of e4m3 ask how pages are read. */
template <flash_config_t C>
static __device__ __forceinline__ void await_k(const row_state<C> &rows) {
    const uint64_t &full = block_state<C>().k_full[rows.k.stage];
    if constexpr (multiplies_e4m3<C> && has_pages<C>) {
        wait_full(full, rows.k.parity);
        if (rows.paging->box_keys == 0)
            async_proxy_fence();
    } else {
        wait_keys<C>(full, rows.k.parity);
    }
}

/* The warps that transpose V have ordered their stores before what wgmma reads. */
template <flash_config_t C>
static __device__ __forceinline__ void await_v(const row_state<C> &rows) {
    const uint64_t &full = block_state<C>().v_full[rows.v.stage];
    if constexpr (transposes<C>)
        wait_full(full, rows.v.parity);
    else
        wait_keys<C>(full, rows.v.parity);
}

template <flash_config_t C>
static __device__ __forceinline__ void issue_block_scores(row_state<C> &rows) {
    issue_scores<C>(rows.s, rows.q,
                    q_tile<C>(0) + rows.number * SM90_WARPGROUP_ROWS * SM90_PANEL_BYTES,
                    rows.k.stage);
}

template <flash_config_t C>
static __device__ __forceinline__ void issue_block_output(row_state<C> &rows) {
    if constexpr (multiplies_e4m3<C>)
        issue_part<C, 0>(rows.second, rows.p, rows.v.stage);
    else
        issue_output<C>(rows.o, rows.p, rows.v.stage);
}

template <flash_config_t C>
static __device__ __forceinline__ void finish_scores(row_state<C> &rows) {
    pin_accumulators(rows.s.s);
    release(block_state<C>().k_empty[rows.k.stage]);
    step<k_stages<C>>(rows.k);
}

template <flash_config_t C>
static __device__ __forceinline__ void finish_output(row_state<C> &rows) {
    if constexpr (multiplies_e4m3<C>)
        add_second_level<C>(rows.o, rows.second, rows.p, rows.v.stage);
    else
        pin_accumulators(rows.o.o);
    release(block_state<C>().v_empty[rows.v.stage]);
    step<v_stages<C>>(rows.v);
}

/* Finishes the products of scores, caps them, adds the bias and hides keys in holes. POLYNOMIAL: as
 * of cap_scores(). */
template <flash_config_t C, bool POLYNOMIAL>
static __device__ __forceinline__ void complete_scores(row_state<C> &rows, const tile_bias<C> &bias,
                                                       int32_t first_key,
                                                       const score_units<C> &unit) {
    if constexpr (hides_holes<C>) {
        const flash_bias_t &of_call = bias.params.attention.bias;
        const unhidden_columns<C> unhidden = take_holes_of_stage<C>(of_call, rows.k.stage);
        finish_scores<C>(rows);
        cap_scores<C, POLYNOMIAL>(rows.s, unit);
        add_tile_bias<C>(rows.s, bias, first_key, unit);
        hide_holes<C>(rows.s, of_call, unhidden);
    } else {
        finish_scores<C>(rows);
        cap_scores<C, POLYNOMIAL>(rows.s, unit);
        add_tile_bias<C>(rows.s, bias, first_key, unit);
    }
}

/* Waits for K, and computes the scores of the next block, with softcap and bias. */
template <flash_config_t C>
static __device__ __forceinline__ void compute_scores(row_state<C> &rows, const tile_bias<C> &bias,
                                                      int32_t first_key,
                                                      const score_units<C> &unit) {
    await_k<C>(rows);
    issue_block_scores<C>(rows);
    wgmma_wait<0>();
    complete_scores<C, false>(rows, bias, first_key, unit);
}

/* Turns the scores of the block from first_key on into P, when no product is under way. */
template <flash_config_t C>
static __device__ __forceinline__ void weigh(row_state<C> &rows, const tile_bias<C> &bias,
                                             int32_t first_key, const score_units<C> &unit) {
    if constexpr (multiplies_e4m3<C>) {
        rescale_t past;
        if (follow_scores<C>(rows.softmax, past, rows.s, unit))
            rescale_rows<C>(rows.o, rows.second, past);
    } else {
        rescale_output<C>(rows.o, raise_tile_max<C>(rows.softmax, rows.s, bias, first_key, unit));
    }
    exponentiate<C>(rows.s, rows.softmax, softmax_unit<C>(bias, unit));
    round_probabilities<C>(rows.p, rows.s);
}

/* Multiplies P by V, which has arrived. */
template <flash_config_t C>
static __device__ __forceinline__ void compute_output(row_state<C> &rows) {
    issue_block_output<C>(rows);
    wgmma_wait<0>();
    finish_output<C>(rows);
}

/* ---- Whole blocks ---- */

/* These exponentials of a block, from accumulator first_beside<C, PART> of S on, go with a part of
 * P V of the block before, where that has parts. */
template <flash_config_t C, int PART>
constexpr int first_beside = score_registers<C> / 4 * PART / second_level_parts<C> * 4;

/* Computes the exponentials beside the parts of P V from PART on, the first of which is under way,
 * and adds these to O. */
template <flash_config_t C, int PART = 0>
static __device__ __forceinline__ void exponentiate_beside_output(row_state<C> &rows,
                                                                  const score_units<C> &unit) {
    exponentiate_part<C, first_beside<C, PART>, first_beside<C, PART + 1>>(rows.s, rows.softmax,
                                                                           unit);
    complete_first(rows.softmax.sum[0], rows.softmax.sum[1], q_tile<C>(0));
    wgmma_wait<0>();
    add_part<C, PART>(rows.o, rows.second);
    if constexpr (!is_last_part<C, PART>) {
        issue_part<C, PART + 1>(rows.second, rows.p, rows.v.stage);
        exponentiate_beside_output<C, PART + 1>(rows, unit);
    }
}

/* Turns the scores of a block into P of e4m3, while P V of the block before is under way. */
template <flash_config_t C>
static __device__ __forceinline__ void weigh_beside_parts(row_state<C> &rows,
                                                          const score_units<C> &unit) {
    rescale_t past;
    const bool rises = follow_scores<C>(rows.softmax, past, rows.s, unit);
    exponentiate_beside_output<C>(rows, unit);
    release(block_state<C>().v_empty[rows.v.stage]);
    step<v_stages<C>>(rows.v);
    if (rises)
        rescale_rows<C>(rows.o, rows.second, past);
    round_probabilities<C>(rows.p, rows.s);
}

/* Does that for P of 16 bits. */
template <flash_config_t C>
static __device__ __forceinline__ void
weigh_beside_output(row_state<C> &rows, const tile_bias<C> &bias, int32_t first_key,
                    const score_units<C> &unit) {
    const rescale_t past = raise_tile_max<C>(rows.softmax, rows.s, bias, first_key, unit);
    exponentiate<C>(rows.s, rows.softmax, softmax_unit<C>(bias, unit));
    complete_first(rows.softmax.sum[0], rows.softmax.sum[1], q_tile<C>(0));
    wgmma_wait<0>();
    finish_output<C>(rows);
    rescale_output_if_needed<C>(rows.o, past);
    round_probabilities<C>(rows.p, rows.s);
}

/* Computes a block after the first, when P of the block before is still to be multiplied. */
template <flash_config_t C>
static __device__ __forceinline__ void next_whole_block(row_state<C> &rows,
                                                        const tile_bias<C> &bias, int32_t first_key,
                                                        const score_units<C> &unit) {
    await_k<C>(rows);
    await_turn<C>(rows);
    issue_block_scores<C>(rows);
    await_v<C>(rows);
    issue_block_output<C>(rows);
    pass_turn<C>(rows);
    wgmma_wait<1>();
    complete_scores<C, true>(rows, bias, first_key, unit);
    if constexpr (multiplies_e4m3<C>)
        weigh_beside_parts<C>(rows, unit);
    else
        weigh_beside_output<C>(rows, bias, first_key, unit);
}

template <flash_config_t C>
static __device__ __forceinline__ void
compute_whole_blocks(row_state<C> &rows, const key_walk_t &walk, const tile_bias<C> &bias,
                     const score_units<C> &unit) {
    const int32_t count = whole_blocks(walk);
    if (count <= 0)
        return;
    if (rows.number == 1)
        pass_turn<C>(rows); /* the first one is consumer 0's */
    compute_scores<C>(rows, bias, nth_key<C>(walk, 0), unit);
    weigh<C>(rows, bias, nth_key<C>(walk, 0), unit);
#pragma unroll 1
    for (int32_t n = 1; n < count; ++n)
        next_whole_block<C>(rows, bias, nth_key<C>(walk, n), unit);
    await_v<C>(rows);
    compute_output<C>(rows);
}

/* ---- Blocks that are cut ---- */

/* Hides the keys that a row does not see in the block that begins with first_key. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_keys(score_tile<C> &s, const row_keys_t &keys,
                                                 int32_t first_key) {
    constexpr int columns = C.B_c / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const flash_range_t &of_row = keys.of[half];
        const auto seen = first_columns<columns>(columns_before(of_row.end - first_key));
        const auto left = first_columns<columns>(columns_before(of_row.begin - first_key));
#pragma unroll
        for (int i = 0; i < columns; ++i)
            if (!((seen.words[i / 32] & ~left.words[i / 32]) >> i % 32 & 1))
                s.s[i / 2 * 4 + 2 * half + i % 2] = -INFINITY;
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void
compute_cut_block(row_state<C> &rows, const row_keys_t &keys, const tile_bias<C> &bias,
                  int32_t first_key, const score_units<C> &unit) {
    compute_scores<C>(rows, bias, first_key, unit);
    hide_keys<C>(rows.s, keys, first_key);
    weigh<C>(rows, bias, first_key, unit);
    await_v<C>(rows);
    meet_converter<C>();
    sanitise_v<C>(rows.o.o, 0, v_tile<C>(rows.v.stage), keys, first_key);
    meet_converter<C>();
    compute_output<C>(rows);
}

/* Computes all blocks of a walk of e4m3. The first whole block and those that are cut share code,
 * of which each instruction comes from memory when it runs first. */
template <flash_config_t C>
static __device__ __forceinline__ void
compute_walk_of_e4m3(row_state<C> &rows, const decode_params_t &params, const decode_block_t &block,
                     const key_walk_t &walk, const tile_bias<C> &bias, const score_units<C> &unit) {
    const int32_t whole = whole_blocks(walk), blocks = walk.blocks;
    if (rows.number == 1 && whole > 0)
        pass_turn<C>(rows); /* the first one is consumer 0's */
#pragma unroll 1
    for (int32_t n = 0; n < blocks;) {
        const bool cut = n >= whole;
        row_keys_t keys;
        int32_t first_key;
        compute_scores<C>(rows, bias, 0, unit);
        if (cut) {
            const parked_t of_cut = unpark<C>(rows.number, block, walk);
            keys = find_row_keys(params, of_cut.block, of_cut.walk, tile_row(0));
            first_key = nth_key<C>(of_cut.walk, n++);
            hide_keys<C>(rows.s, keys, first_key);
        }
        weigh<C>(rows, bias, 0, unit);
        if (!cut)
#pragma unroll 1
            for (n = 1; n < whole; ++n)
                next_whole_block<C>(rows, bias, 0, unit);
        await_v<C>(rows);
        if (cut) {
            meet_converter<C>();
            sanitise_v<C>(rows.o.o, 0, v_tile<C>(rows.v.stage), keys, first_key);
            meet_converter<C>();
        }
        compute_output<C>(rows);
    }
}

/* Computes all blocks of the walk. */
template <flash_config_t C>
static __device__ __forceinline__ void
compute_walk(row_state<C> &rows, const decode_params_t &params, const decode_block_t &block,
             const key_walk_t &walk, const tile_bias<C> &bias, const score_units<C> &unit) {
    if constexpr (multiplies_e4m3<C>) {
        compute_walk_of_e4m3<C>(rows, params, block, walk, bias, unit);
        return;
    }
    compute_whole_blocks<C>(rows, walk, bias, unit);
    const parked_t of_cut = unpark<C>(rows.number, block, walk);
    const row_keys_t keys = find_row_keys(params, of_cut.block, of_cut.walk, tile_row(0));
#pragma unroll 1
    for (int32_t n = whole_blocks(of_cut.walk); n < of_cut.walk.blocks; ++n)
        compute_cut_block<C>(rows, keys, bias, nth_key<C>(of_cut.walk, n), unit);
}

#endif
