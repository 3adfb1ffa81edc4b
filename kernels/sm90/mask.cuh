/*
 * Scores of keys that a row does not see become -infinity, exactly.
 */
#ifndef FLASH_KERNELS_SM90_MASK_CUH
#define FLASH_KERNELS_SM90_MASK_CUH

#include "sm90/softmax.cuh"
#include "sm90/tile.cuh"

template <flash_config_t C>
static __device__ __forceinline__ void mask_scores(score_tile<C> &s, const flash_params_t &params,
                                                   const tile_of<C> &tile, int32_t block) {
    const int32_t first_column = block * C.B_c + tile_column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const flash_range_t keys =
            visible_keys<C>(params, tile, (int64_t)tile.row_begin + tile_row(half));
        const int32_t begin = keys.begin - first_column;
        const int32_t end = keys.end - first_column;
#pragma unroll
        for (int i = 0; i < score_registers<C>; i += 4)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                if (2 * i + j >= end || (has_window<C> && 2 * i + j < begin))
                    s.s[i + 2 * half + j] = -INFINITY;
    }
}

#endif
