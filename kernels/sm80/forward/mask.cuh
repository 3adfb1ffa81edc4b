/*
 * Scores of keys that a row does not see become -infinity.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_MASK_CUH
#define FLASH_KERNELS_SM80_FORWARD_MASK_CUH

#include "sm80/forward/products.cuh"
#include "sm80/forward/rows.cuh"
#include "sm80/forward/tile.cuh"

/* Hides the thread's scores of a row outside of [begin, end), counted from its first column. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_columns(score_tile<C> &s, int m, int half,
                                                    int32_t begin, int32_t end) {
#pragma unroll
    for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (n * 8 + i >= end || (has_window<C> && n * 8 + i < begin))
                s.s[m][n][2 * half + i] = -INFINITY;
}

/* Hides the keys outside the chunks of the rows. That is a step of its own, because together with
 * the window it takes registers that the larger kernels do not have. */
template <flash_config_t C>
static __device__ __forceinline__ void
hide_other_chunks(score_tile<C> &s, const flash_params_t &params, const query_tile_t &tile,
                  int32_t first_column) {
    const int32_t first_place =
        tile.row_begin + tile.sequence.len_k - tile.sequence.len_q + params.diagonal_offset;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_range_t chunk =
                flash_attention_chunk_at(&params, first_place + tile_row<C>(m, half));
            hide_columns<C>(s, m, half, chunk.begin - first_column, chunk.end - first_column);
        }
}

template <flash_config_t C>
static __device__ __forceinline__ void mask_scores(score_tile<C> &s, const flash_params_t &params,
                                                   const query_tile_t &tile, int32_t block) {
    const int32_t first_column = block * C.B_c + tile_column();
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_range_t keys = window_keys<C>(
                params, tile.sequence, (int64_t)tile.row_begin + tile_row<C>(m, half));
            hide_columns<C>(s, m, half, keys.begin - first_column, keys.end - first_column);
        }
    if constexpr (has_window<C>)
        if (params.attention_chunk > 0)
            hide_other_chunks<C>(s, params, tile, first_column);
}

#endif
