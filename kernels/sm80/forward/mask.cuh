/*
 * Scores of keys that a row does not see become -infinity.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_MASK_CUH
#define FLASH_KERNELS_SM80_FORWARD_MASK_CUH

#include "sm80/forward/products.cuh"
#include "sm80/forward/rows.cuh"
#include "sm80/forward/tile.cuh"

template <flash_config_t C>
static __device__ __forceinline__ void mask_scores(score_tile<C> &s, const flash_params_t &params,
                                                   const query_tile_t &tile, int32_t block) {
    const int32_t first_column = block * C.B_c + tile_column();
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_range_t keys = visible_keys<C>(
                params, tile.sequence, (int64_t)tile.row_begin + tile_row<C>(m, half));
            const int32_t begin = keys.begin - first_column;
            const int32_t end = keys.end - first_column;
#pragma unroll
            for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (n * 8 + i >= end || (has_window<C> && n * 8 + i < begin))
                        s.s[m][n][2 * half + i] = -INFINITY;
        }
}

#endif
