/*
 * Kernels with bias scale the scores of a part, and add ALiBi and masks.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_BIAS_CUH
#define FLASH_KERNELS_SM80_BACKWARD_BIAS_CUH

#include "common/bias.cuh"
#include "common/block_bits.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/tile.cuh"

/* Returns the bias's row of a query; those past the end have that of the last one. member: of the
 * group, if the tile's head is one of K and V. */
template <flash_config_t C>
static __device__ __forceinline__ flash_bias_row_t find_bias_row(const flash_params_t &p,
                                                                 const gradient_tile_t &tile,
                                                                 int32_t member, int32_t query) {
    const int32_t head = rows_are_keys<C> ? tile.head * p.group + member : tile.head;
    return flash_bias_row(&p, &tile.sequence, tile.batch_index, head,
                          min(query, tile.sequence.len_q - 1));
}

/* Returns what joins the scaled score of a key, by a mask of any kind. */
static __device__ __forceinline__ float bias_of_any(const flash_bias_t &bias,
                                                    const flash_bias_row_t &row, int32_t key) {
    if (bias.kind != FLASH_MASK_BLOCKS || !flash_bias_covers(&bias, &row, key))
        return bias_of_key<true>(bias, row, key);
    const uint32_t column = (uint32_t)(key - row.first_key);
    return shows_block(bias, row.at, column / (uint32_t)bias.block.keys)
               ? flash_bias_alibi(&row, key)
               : -INFINITY;
}

static __device__ __forceinline__ void add_bias_of(float &score, const flash_params_t &p,
                                                   const flash_bias_row_t &row, int32_t key,
                                                   float log2_unit) {
    score = add_bias(score, log2_unit, bias_of_any(p.bias, row, key));
}

/* Adds the bias; scores are in the exponent of 2 then. */
template <flash_config_t C>
static __device__ __forceinline__ void add_biases(score_part<C> &s, const flash_params_t &p,
                                                  const gradient_tile_t &tile, int32_t member,
                                                  int32_t first_column, float log2_unit) {
    const int32_t first = first_column + column_of_thread();
    if constexpr (rows_are_keys<C>) {
#pragma unroll
        for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const flash_bias_row_t row = find_bias_row<C>(p, tile, member, first + n * 8 + i);
#pragma unroll
                for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        add_bias_of(s.s[m][n][2 * half + i], p, row,
                                    tile.row_begin + row_of_thread<C>(m, half), log2_unit);
            }
    } else {
#pragma unroll
        for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const flash_bias_row_t row =
                    find_bias_row<C>(p, tile, 0, tile.row_begin + row_of_thread<C>(m, half));
#pragma unroll
                for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        add_bias_of(s.s[m][n][2 * half + i], p, row, first + n * 8 + i, log2_unit);
            }
    }
}

#endif
