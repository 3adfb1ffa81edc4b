/*
 * Kernels with bias add ALiBi and masks to the scores of a block.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_BIAS_CUH
#define FLASH_KERNELS_SM80_FORWARD_BIAS_CUH

#include "common/bias.cuh"
#include "sm80/forward/products.cuh"
#include "sm80/forward/rows.cuh"
#include "sm80/forward/tile.cuh"

/* Returns the bias's row of a row of the tile; those past its end have that of the last one. */
template <flash_config_t C>
static __device__ __forceinline__ flash_bias_row_t find_bias_row(const flash_params_t &params,
                                                                 const query_tile_t &tile,
                                                                 int tile_row) {
    const int32_t row = tile_row < tile.rows ? tile_row : tile.rows - 1;
    return flash_bias_row(&params.bias, &tile.sequence, tile.batch_index, tile.head,
                          (int64_t)tile.row_begin + row);
}

/* Adds the bias; scores are in the exponent of 2 then. */
template <flash_config_t C>
static __device__ __forceinline__ void add_bias(score_tile<C> &s, const flash_params_t &params,
                                                const query_tile_t &tile, int32_t block,
                                                float log2_unit) {
    const int32_t first_key = block * C.B_c + tile_column();
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_bias_row_t row = find_bias_row<C>(params, tile, tile_row<C>(m, half));
#pragma unroll
            for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float &score = s.s[m][n][2 * half + i];
                    score = add_bias(score, log2_unit,
                                     bias_of_key(params.bias, row, first_key + n * 8 + i));
                }
        }
}

#endif
