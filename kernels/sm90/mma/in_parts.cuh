/*
 * Where O has more than 128 columns there are no registers for S and T beside it. So T has those of
 * S: a consumer computes P V of a block, in parts, then the scores of the next, then their softmax,
 * one after the other. Another consumer's products run beside the softmax, and with ping_pong they
 * take turns: one has the tensor cores from its P V to its scores.
 *
 *     consumer 0   | PV 0 | PV 1 | QK^T | softmax            | PV 0 | PV 1 | QK^T | ...
 *     consumer 1          | softmax     | PV 0 | PV 1 | QK^T | softmax            | ...
 *     registers    | T           | S                  | P, T        | S           | ... of 0
 */
#ifndef FLASH_KERNELS_SM90_MMA_IN_PARTS_CUH
#define FLASH_KERNELS_SM90_MMA_IN_PARTS_CUH

#include "sm90/mma/e4m3_blocks.cuh"

/* Turns the scores of a block into P. The arguments of a chunk's exponentials come beside the
 * exponentials of the one before. */
template <flash_config_t C>
static __device__ __forceinline__ void exponentiate_in_chunks(consumer_state<C> &consumer,
                                                              const score_units<C> &unit) {
    const float reference[2] = {log2_reference<C>(consumer.softmax, unit, 0),
                                log2_reference<C>(consumer.softmax, unit, 1)};
    scale_chunk<C>(consumer.s, 0, unit, reference);
#pragma unroll
    for (int chunk = 0; chunk < key_steps<C>; ++chunk) {
        exponentiate_scaled<C>(consumer.s, chunk);
        if (chunk + 1 < key_steps<C>)
            scale_chunk<C>(consumer.s, chunk + 1, unit, reference);
        if (chunk > 0)
            use_chunk<C>(consumer, chunk - 1);
        keep_order(consumer.number, q_tile<C>(0));
    }
    use_chunk<C>(consumer, key_steps<C> - 1);
}

/* Computes P V of the block before, in the consumer's turn, and begins the scores of the next. If
 * both parts are under way together, the sums of the second run beside the scores. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_in_turn(consumer_state<C> &consumer) {
    await_v<C>(consumer);
    await_turn<C>(consumer);
    issue_block_output<C>(consumer);
    await_part<C, 0>();
    if constexpr (parts_at_a_time<C> == 2)
        add_and_issue<C, 0>(consumer.o, consumer.second, consumer.p, consumer.v.stage);
    else
        finish_output<C>(consumer);
    await_k<C>(consumer);
    issue_block_scores<C>(consumer.s, consumer);
    pass_turn<C>(consumer);
    if constexpr (parts_at_a_time<C> == 2) {
        wgmma_wait<1>();
        add_and_issue<C, 1>(consumer.o, consumer.second, consumer.p, consumer.v.stage);
        give_back_v<C>(consumer);
    }
}

/* Computes P of a block after the first, when P of the block before is still to be multiplied. */
template <flash_config_t C, bool CUT>
static __device__ __forceinline__ void
step_in_parts(int32_t block, const flash_params_t &params, const tile_of<C> &tile,
              const score_units<C> &unit, consumer_state<C> &consumer) {
    rescale_t past;
    multiply_in_turn<C>(consumer);
    wgmma_wait<0>();
    finish_scores<C>(consumer.s, consumer, block == tile.block_begin);
    prepare_scores<C, CUT>(consumer.s, params, tile, unit, block);
    const bool rises = follow_scores<C>(consumer.softmax, past, consumer.s, unit);
    if (rises)
        rescale_rows<C>(consumer.o, consumer.second, past);
    exponentiate_in_chunks<C>(consumer, unit);
}

/* Computes all blocks of a tile, but for PV of the last. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_in_parts(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
                 consumer_state<C> &consumer) {
    const int32_t second = tile.block_end - 2;
    start_with_block<C>(params, tile, unit, consumer);
    exponentiate<C>(consumer.s, consumer.softmax, unit);
    round_probabilities<C>(consumer.p, consumer.s);
    walk_from<C>(second, tile, [&](int32_t block, auto cut) {
        step_in_parts<C, cut>(block, params, tile, unit, consumer);
    });
}

#endif
