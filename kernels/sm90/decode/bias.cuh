/*
 * Decode kernels with bias add ALiBi and masks to the scores of a block. Their rows are of several
 * query heads, so each of a thread's two has a slope of its own.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_BIAS_CUH
#define FLASH_KERNELS_SM90_DECODE_BIAS_CUH

#include "common/decode/rows.cuh"
#include "sm90/decode/derive.cuh"
#include "sm90/softmax/bias.cuh"

/* This is what the thread knows of the bias of its tile; kernels without bias have none. */
template <flash_config_t C, bool HAS_BIAS = has_bias<C>> struct tile_bias {};

template <flash_config_t C> struct tile_bias<C, true> {
    static_assert(!has_scales<C>, "scores of both rows have one unit");
    const decode_params_t &params;
    const decode_block_t &block;
    score_unit_t unit; /* of the scores that the softmax sees */
    float slopes[2];
    /* These are the same in all threads. */
    int32_t len_k;
    int32_t first_diagonal; /* the key at the place of the tile's first row */
    int32_t last_diagonal;
};

/* Returns the bias's row of one of the thread's two rows; rows past the tile's end have that of the
 * last one. of_blocks: the mask is of blocks. */
template <flash_config_t C>
static __device__ __forceinline__ flash_bias_row_t find_bias_row(const decode_params_t &params,
                                                                 const decode_block_t &block,
                                                                 int half, bool of_blocks) {
    const flash_params_t &p = params.attention;
    const head_row_t at = find_row(params, block.row_begin + min(tile_row(half), block.rows - 1));
    return flash_bias_row_of(&p, &block.sequence, block.piece.batch_index,
                             (int64_t)block.first_head_kv * p.group + at.head, at.query, of_blocks);
}

/* Returns the bias of a tile. unit: of scores before it. */
template <flash_config_t C>
static __device__ __forceinline__ tile_bias<C> find_tile_bias(const decode_params_t &params,
                                                              const decode_block_t &block,
                                                              const score_unit_t &unit) {
    if constexpr (has_bias<C>) {
        const flash_bias_t &bias = params.attention.bias;
        const flash_sequence_t &s = block.sequence;
        const int32_t last_row = block.row_begin + block.rows - 1;
        const int32_t diagonal = s.len_k - s.len_q + params.attention.diagonal_offset;
        return {params,
                block,
                natural_unit_after_bias(bias, unit),
                {find_bias_row<C>(params, block, 0, false).slope,
                 find_bias_row<C>(params, block, 1, false).slope},
                uniform(s.len_k),
                uniform(diagonal + find_row(params, block.row_begin).query),
                uniform(diagonal + find_row(params, last_row).query)};
    } else {
        return {};
    }
}

/* Returns the unit of the scores that the softmax sees. */
template <flash_config_t C>
static __device__ __forceinline__ const score_units<C> &softmax_unit(const tile_bias<C> &bias,
                                                                     const score_units<C> &unit) {
    if constexpr (has_bias<C>)
        return bias.unit;
    else
        return unit;
}

template <flash_config_t C>
static __device__ __forceinline__ bias_keys_t keys_from(const tile_bias<C> &of_tile,
                                                        int32_t first_key) {
    return find_bias_keys(of_tile.params.attention.bias, of_tile.len_k, first_key,
                          of_tile.first_diagonal, of_tile.last_diagonal);
}

/* Returns a function of 0 and 1, the bias's rows of the thread's two rows, and of whether the mask
 * is of blocks. */
template <flash_config_t C>
static __device__ __forceinline__ auto bias_rows_of(const tile_bias<C> &of_tile) {
    return [&of_tile](int half, bool of_blocks = false) {
        flash_bias_row_t row = find_bias_row<C>(of_tile.params, of_tile.block, half, of_blocks);
        row.slope = of_tile.slopes[half];
        return row;
    };
}

/* Adds the bias of the block of keys from first_key on. */
template <flash_config_t C>
static __device__ __forceinline__ void add_tile_bias(score_tile<C> &s, const tile_bias<C> &of_tile,
                                                     int32_t first_key,
                                                     const score_units<C> &unit) {
    if constexpr (has_bias<C>)
        add_bias<C>(s, of_tile.params.attention.bias, keys_from<C>(of_tile, first_key), unit,
                    bias_rows_of<C>(of_tile));
}

/* Raises the reference maxima to those of that block. unit: before the bias. */
template <flash_config_t C>
static __device__ __forceinline__ rescale_t raise_tile_max(softmax_state_t &state, score_tile<C> &s,
                                                           const tile_bias<C> &of_tile,
                                                           int32_t first_key,
                                                           const score_units<C> &unit) {
    if constexpr (has_bias<C>)
        return raise_biased_max<C>(state, s, of_tile.params.attention.bias,
                                   keys_from<C>(of_tile, first_key), of_tile.unit,
                                   bias_rows_of<C>(of_tile));
    else
        return raise_max<C>(state, s, unit);
}

#endif
