/*
 * Where O has more than 64 columns there are no registers for a second tile of scores, and from 192
 * on none for P V of all columns beside O. So P V is computed in parts, and between them the
 * softmax goes on. With 256 columns:
 *
 *     tensor cores   | QK^T j | PV 0       | PV 1       | PV 2       | PV 3       |
 *     other units             | softmax j  | O += 0,    | O += 1,    | O += 2,    | O += 3
 *                                          | softmax j  | softmax j  | softmax j  |
 */
#ifndef FLASH_KERNELS_SM90_MMA_IN_PARTS_CUH
#define FLASH_KERNELS_SM90_MMA_IN_PARTS_CUH

#include "sm90/fp8/reference.cuh"
#include "sm90/mma/consumer.cuh"

/* Computes P of the tile's first block, whose scores are done. */
template <flash_config_t C>
static __device__ __forceinline__ void
first_in_parts(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
               consumer_state<C> &consumer) {
    const int32_t block = tile.block_end - 1;
    finish_scores<C>(consumer.s, consumer, block == tile.block_begin);
    skip_last<C, v_stages<C>>(consumer.walk, block_state<C>().v_full, block_state<C>().v_empty,
                              consumer.v);
    prepare_scores<C, true>(consumer.s, params, tile, unit, block);
    consumer.softmax = start_softmax<C>(consumer.s);
    exponentiate<C>(consumer.s, consumer.softmax, unit);
    round_probabilities<C>(consumer.p, consumer.s);
}

/* The exponentials from this accumulator of S on go with a part of P V. A single part, whose sums
 * take long, has half of them, and the others go with the sums. */
template <flash_config_t C, int PART>
constexpr int first_beside_part =
    has_one_part<C> ? PART *score_registers<C> / 2
                    : score_registers<C> / 4 * PART / second_level_parts<C> * 4;

/* Computes a part of the softmax beside each part of P V from PART on, which is under way. */
template <flash_config_t C, int PART = 0>
static __device__ __forceinline__ void exponentiate_beside_parts(const softmax_units<C> &unit,
                                                                 consumer_state<C> &consumer) {
    exponentiate_part<C, first_beside_part<C, PART>, first_beside_part<C, PART + 1>>(
        consumer.s, consumer.softmax, unit);
    complete_first(consumer.softmax.sum[0], consumer.softmax.sum[1], q_tile<C>(0));
    wgmma_wait<0>();
    add_part<C, PART>(consumer.o, consumer.second);
    if constexpr (!is_last_part<C, PART>) {
        issue_part<C, PART + 1>(consumer.second, consumer.p, consumer.v.stage);
        exponentiate_beside_parts<C, PART + 1>(unit, consumer);
    }
}

/* Computes P of a block after the first, while P of the block before is multiplied. */
template <flash_config_t C, bool CUT>
static __device__ __forceinline__ void
step_in_parts(int32_t block, const flash_params_t &params, const tile_of<C> &tile,
              const score_units<C> &unit, consumer_state<C> &consumer) {
    rescale_t past;
    await_k<C>(consumer);
    await_turn<C>(consumer);
    issue_block_scores<C>(consumer.s, consumer);
    await_v<C>(consumer);
    issue_part<C, 0>(consumer.second, consumer.p, consumer.v.stage);
    pass_turn<C>(consumer);
    wgmma_wait<1>();
    finish_scores<C>(consumer.s, consumer, block == tile.block_begin);
    prepare_scores<C, CUT>(consumer.s, params, tile, unit, block);
    const bool rises = follow_scores<C>(consumer.softmax, past, consumer.s, unit);
    exponentiate_beside_parts<C>(unit, consumer);
    release(block_state<C>().v_empty[consumer.v.stage]);
    step<v_stages<C>>(consumer.v);
    if constexpr (has_one_part<C>)
        exponentiate_part<C, first_beside_part<C, 1>, score_registers<C>>(consumer.s,
                                                                          consumer.softmax, unit);
    if (rises)
        rescale_rows<C>(consumer.o, consumer.second, past);
    round_probabilities<C>(consumer.p, consumer.s);
}

/* Computes all blocks of a tile, but for PV of the last. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_in_parts(const flash_params_t &params, const tile_of<C> &tile, const score_units<C> &unit,
                 consumer_state<C> &consumer) {
    int32_t block = tile.block_end - 2;
    first_in_parts<C>(params, tile, unit, consumer);
#pragma unroll 1
    while (block >= tile.block_begin) {
        if constexpr (has_mask<C>)
#pragma unroll 1
            for (; block >= tile.block_begin && is_cut(tile, block); --block)
                step_in_parts<C, true>(block, params, tile, unit, consumer);
#pragma unroll 1
        for (; block >= tile.block_begin && !(has_mask<C> && is_cut(tile, block)); --block)
            step_in_parts<C, false>(block, params, tile, unit, consumer);
    }
}

#endif
