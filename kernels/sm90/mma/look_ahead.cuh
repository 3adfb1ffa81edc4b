/*
 * Where products are of e4m3 they take no longer than the exponentials do, at a d_head of 64 half
 * as long. There, consumers have registers for a second tile of scores: they compute the scores of
 * the next block, and P V of the one before, beside the softmax of a block:
 *
 *     tensor cores   | PV j+1, QK^T j-1 | PV j, QK^T j-2  | ...
 *     other units    | softmax j        | softmax j-1     |
 *
 * P V of several blocks stays in the accumulators T of the second level before it is added to O, so
 * that additions are few. The reference maxima follow the scores, and what is in T joins O before O
 * is rescaled.
 */
#ifndef FLASH_KERNELS_SM90_MMA_LOOK_AHEAD_CUH
#define FLASH_KERNELS_SM90_MMA_LOOK_AHEAD_CUH

#include "sm90/fp8/exponentials.cuh"
#include "sm90/fp8/reference.cuh"
#include "sm90/mma/consumer.cuh"

/* So many blocks are in T at most. */
constexpr int32_t most_blocks_in_t = 2;

/* Adds T, which is done, to O and the weights of rows, if it has as many blocks as it may have, or
 * the reference maxima of the warp's rows rise. The four warps of a consumer count alike, since
 * wgmma takes from all of them whether it adds to T: a warp that rescales its rows before leaves
 * zeros in T. */
template <flash_config_t C>
static __device__ __forceinline__ void count_block_in_t(output_tile<C> &o, second_level<C> &level,
                                                        const rescale_t &past, bool rises) {
    const bool is_full = ++level.blocks == most_blocks_in_t;
    if (is_full || rises)
        add_part<C, 0>(o, level);
    if (rises) {
        rescale_rows<C>(o, level, past);
#pragma unroll
        for (float &t : level.t[0])
            t = 0.0f;
    }
    if (is_full)
        level.blocks = 0;
}

/* Computes the exponentials of a block. With ping_pong consumers take turns: the multi-function
 * units then have one consumer's while the other does all else. */
template <flash_config_t C>
static __device__ __forceinline__ void
exponentiate_in_turn(score_tile<C> &s, const flash_params_t &params, const softmax_units<C> &unit,
                     consumer_state<C> &consumer) {
    const float reference[2] = {log2_reference<C>(consumer.softmax, unit, 0),
                                log2_reference<C>(consumer.softmax, unit, 1)};
    await_turn<C>(consumer);
#pragma unroll
    for (int chunk = 0; chunk < key_steps<C>; ++chunk) {
        keep_order(params.batch, q_tile<C>(0));
        exponentiate_chunk<C>(s, chunk, unit, reference);
        if (chunk > 0)
            add_chunk<C>(consumer.softmax, s, chunk - 1);
    }
    keep_order(params.batch, q_tile<C>(0));
    pass_turn<C>(consumer);
    add_chunk<C>(consumer.softmax, s, key_steps<C> - 1);
}

/* Computes P of the tile's first block, whose scores are done, and the scores of the next one. */
template <flash_config_t C, bool LAST>
static __device__ __forceinline__ void
first_ahead(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
            consumer_state<C> &consumer) {
    const int32_t block = tile.block_end - 1;
    finish_scores<C>(consumer.s, consumer, LAST);
    skip_last<C, v_stages<C>>(consumer.walk, block_state<C>().v_full, block_state<C>().v_empty,
                              consumer.v);
    if constexpr (!LAST) {
        await_k<C>(consumer);
        issue_block_scores<C>(consumer.next, consumer);
    }
    prepare_scores<C, true>(consumer.s, params, tile, unit, block);
    consumer.softmax = start_softmax<C>(consumer.s);
    exponentiate_in_turn<C>(consumer.s, params, unit, consumer);
    if constexpr (!LAST) {
        wgmma_wait<0>();
        finish_scores<C>(consumer.next, consumer, block - 1 == tile.block_begin);
    }
    round_probabilities<C>(consumer.p, consumer.s);
}

/* Computes P of a block after the first, whose scores s are done, and the scores of the next one,
 * while P of the block before is multiplied. */
template <flash_config_t C, bool CUT, bool LAST>
static __device__ __forceinline__ void
step_ahead(score_tile<C> &s, score_tile<C> &next, int32_t block, const flash_params_t &params,
           const tile_of<C> &tile, const score_units<C> &unit, consumer_state<C> &consumer) {
    rescale_t past;
    await_v<C>(consumer);
    issue_block_output<C>(consumer);
    if constexpr (!LAST) {
        await_k<C>(consumer);
        issue_block_scores<C>(next, consumer);
    }
    prepare_scores<C, CUT>(s, params, tile, unit, block);
    const bool rises = follow_scores<C>(consumer.softmax, past, s, unit);
    exponentiate_in_turn<C>(s, params, unit, consumer);
    wgmma_wait<0>();
    if constexpr (!LAST)
        finish_scores<C>(next, consumer, block - 1 == tile.block_begin);
    pin_accumulators(consumer.second.t[0]);
    release(block_state<C>().v_empty[consumer.v.stage]);
    step<v_stages<C>>(consumer.v);
    count_block_in_t<C>(consumer.o, consumer.second, past, rises);
    round_probabilities<C>(consumer.p, s);
}

/* Says whether each row sees all keys of two neighbouring blocks. */
template <flash_config_t C>
static __device__ __forceinline__ bool are_whole(const tile_of<C> &tile, int32_t block) {
    return !has_mask<C> || !(is_cut(tile, block) || is_cut(tile, block - 1));
}

/* Computes two blocks. They take the tiles of scores in turn. */
template <flash_config_t C, bool CUT, bool LAST>
static __device__ __forceinline__ void two_ahead(int32_t block, const flash_params_t &params,
                                                 const tile_of<C> &tile, const score_units<C> &unit,
                                                 consumer_state<C> &consumer) {
    step_ahead<C, CUT, false>(consumer.next, consumer.s, block, params, tile, unit, consumer);
    step_ahead<C, CUT, LAST>(consumer.s, consumer.next, block - 1, params, tile, unit, consumer);
}

/* Computes pairs of blocks from `block` on while one or two more are left. */
template <flash_config_t C>
static __device__ __forceinline__ void
pairs_ahead(int32_t &block, const flash_params_t &params, const tile_of<C> &tile,
            const score_units<C> &unit, consumer_state<C> &consumer) {
    const int32_t end = tile.block_begin + 1;
#pragma unroll 1
    while (block > end) {
        if constexpr (has_mask<C>)
#pragma unroll 1
            for (; block > end && !are_whole<C>(tile, block); block -= 2)
                two_ahead<C, true, false>(block, params, tile, unit, consumer);
#pragma unroll 1
        for (; block > end && are_whole<C>(tile, block); block -= 2)
            two_ahead<C, false, false>(block, params, tile, unit, consumer);
    }
}

/* Computes all blocks of a tile, but for PV of the last. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_ahead(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
              consumer_state<C> &consumer) {
    constexpr bool cut = has_mask<C>;
    int32_t block = tile.block_end - 2;
    if (block < tile.block_begin) {
        first_ahead<C, true>(params, tile, unit, consumer);
        return;
    }
    first_ahead<C, false>(params, tile, unit, consumer);
    pairs_ahead<C>(block, params, tile, unit, consumer);
    if (block > tile.block_begin)
        two_ahead<C, cut, true>(block, params, tile, unit, consumer);
    else
        step_ahead<C, cut, true>(consumer.next, consumer.s, block, params, tile, unit, consumer);
}

#endif
