/*
 * The rows of a tile are consecutive queries of one head, whose bias is added block by block.
 */
#ifndef FLASH_KERNELS_SM90_MMA_TILE_BIAS_CUH
#define FLASH_KERNELS_SM90_MMA_TILE_BIAS_CUH

#include "sm90/ptx/predicated.cuh"
#include "sm90/shown_blocks.cuh"
#include "sm90/softmax/bias.cuh"

/* Returns the unit of the scores that the softmax sees. */
template <flash_config_t C>
static __device__ __forceinline__ softmax_units<C> softmax_unit(const flash_params_t &params,
                                                                const score_units<C> &unit) {
    if constexpr (!has_bias<C>)
        return unit;
    else if constexpr (has_scales<C>)
        return natural_biased_unit();
    else
        return natural_unit_after_bias(params.bias, unit);
}

/* Loads the slope of ALiBi that the tile's head has; 0 if there is none. */
template <flash_config_t C>
static __device__ __forceinline__ float load_tile_slope(const flash_params_t &params,
                                                        const tile_of<C> &tile) {
    const flash_bias_t &bias = params.bias;
    if constexpr (has_bias<C>)
        return global_load_if(
            bias.alibi_slopes != nullptr,
            bias.alibi_slopes + tile.batch_index * bias.alibi_stride_batch + tile.head, 0.0f);
    return 0.0f;
}

/* Returns how the keys of a block lie to the bias: beside the mask where that changes nothing. */
template <flash_config_t C>
static __device__ __forceinline__ bias_keys_t keys_of_block(const flash_params_t &params,
                                                            const tile_of<C> &tile,
                                                            const block_visit<C> &block) {
    const flash_sequence_t sequence = sequence_of<C>(params, tile);
    const int32_t diagonal =
        tile.row_begin + sequence.len_k - sequence.len_q + params.diagonal_offset;
    bias_keys_t keys = find_bias_keys(params.bias, sequence.len_k, block_index(block) * C.B_c,
                                      diagonal, diagonal + C.B_r - 1);
    if (!__any_sync(0xffffffffu, mask_changes(block)))
        keys.column = params.bias.n_keys;
    return keys;
}

/* Returns a function of 0 and 1, the bias's rows of the thread's two rows, and of whether the mask
 * is of blocks. Those past the last query have the row of that one. slope: of the tile's head. */
template <flash_config_t C>
static __device__ __forceinline__ auto bias_rows_of(const flash_params_t &params,
                                                    const tile_of<C> &tile, float slope) {
    return [&params, &tile, slope](int half, bool of_blocks = false) {
        const flash_sequence_t sequence = sequence_of<C>(params, tile);
        const int32_t query = min(tile.row_begin + tile_row(half), sequence.len_q - 1);
        flash_bias_row_t row =
            flash_bias_row_of(&params, &sequence, tile.batch_index, tile.head, query, of_blocks);
        row.slope = slope;
        return row;
    };
}

/* Adds the bias of a block's keys, if the kernel has one. */
template <flash_config_t C>
static __device__ __forceinline__ void
add_tile_bias(score_tile<C> &s, const flash_params_t &params, const tile_of<C> &tile, float slope,
              const score_units<C> &unit, const block_visit<C> &block) {
    if constexpr (has_bias<C>)
        add_bias<C>(s, params.bias, keys_of_block<C>(params, tile, block), unit,
                    bias_rows_of<C>(params, tile, slope));
}

/* Raises the reference maxima to those of a block. unit: that of the call, before the bias. */
template <flash_config_t C>
static __device__ __forceinline__ rescale_t raise_tile_max(softmax_state_t &state, score_tile<C> &s,
                                                           const flash_params_t &params,
                                                           const tile_of<C> &tile, float slope,
                                                           const score_units<C> &unit,
                                                           const block_visit<C> &block) {
    if constexpr (has_bias<C>)
        return raise_biased_max<C>(state, s, params.bias, keys_of_block<C>(params, tile, block),
                                   softmax_unit<C>(params, unit),
                                   bias_rows_of<C>(params, tile, slope));
    else
        return raise_max<C>(state, s, unit);
}

#endif
