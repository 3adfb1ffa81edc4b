/*
 * Up to 128 columns of O, consumers have registers for P V of all columns beside O, but not for a
 * second tile of scores:
 *
 *     tensor cores   | QK^T j | PV j+1     |                       | QK^T j-1 | ...
 *     other units             | softmax j  | O += PV, softmax j    |
 *
 * A quarter of the exponentials runs beside P V, and the others beside its addition to O.
 */
#ifndef FLASH_KERNELS_SM90_MMA_ONE_PART_CUH
#define FLASH_KERNELS_SM90_MMA_ONE_PART_CUH

#include "sm90/mma/e4m3_blocks.cuh"

/* Turns the scores of a block into P. before(chunk): what comes first. */
template <flash_config_t C, typename B>
static __device__ __forceinline__ void compute_p(int32_t never_negative, const score_units<C> &unit,
                                                 consumer_state<C> &consumer, const B &before) {
    const float reference[2] = {log2_reference<C>(consumer.softmax, unit, 0),
                                log2_reference<C>(consumer.softmax, unit, 1)};
#pragma unroll
    for (int chunk = 0; chunk < key_steps<C>; ++chunk) {
        before(chunk);
        exponentiate_chunk<C>(consumer.s, chunk, unit, reference);
        if (chunk > 0)
            use_chunk<C>(consumer, chunk - 1);
        keep_order(never_negative, q_tile<C>(0));
    }
    use_chunk<C>(consumer, key_steps<C> - 1);
}

/* Computes P of a block after the first while that of the block before is multiplied. */
template <flash_config_t C, bool CUT>
static __device__ __forceinline__ void
step_in_one_part(int32_t block, const flash_params_t &params, const tile_of<C> &tile,
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
    compute_p<C>(params.batch, unit, consumer, [&](int chunk) {
        if (chunk != 1)
            return;
        wgmma_wait<0>();
        finish_output<C>(consumer);
    });
    if (rises)
        rescale_rows<C>(consumer.o, consumer.second, past);
}

/* Computes all blocks of a tile, but for PV of the last. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_in_one_part(const flash_params_t &params, const tile_of<C> &tile,
                    const score_units<C> &unit, consumer_state<C> &consumer) {
    const int32_t second = tile.block_end - 2;
    start_with_block<C>(params, tile, unit, consumer);
    compute_p<C>(params.batch, unit, consumer, [](int) {});
    walk_from<C>(second, tile, [&](int32_t block, auto cut) {
        step_in_one_part<C, cut>(block, params, tile, unit, consumer);
    });
}

#endif
