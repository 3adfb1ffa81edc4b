/*
 * This file says which query of which head each row of a consumer is (tile.cuh).
 */
#ifndef FLASH_KERNELS_SM90_TILE_ROWS_CUH
#define FLASH_KERNELS_SM90_TILE_ROWS_CUH

#include "sm90/fragments.cuh"
#include "sm90/tile.cuh"

/* Returns the query of the warp's first row, counted from the tile's first. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t warp_query(const flash_params_t &p) {
    if constexpr (!packs_heads<C>)
        return warp_row();
    const int32_t queries = warpgroup_queries<C>(p);
    const int32_t consumer = warp_row() / SM90_WARPGROUP_ROWS;
    return consumer * queries + (warp_row_of_group() & (queries - 1));
}

/* Returns the query of this thread's half 0 or 1, counted from the tile's first. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t row_query(const flash_params_t &p, int half) {
    return warp_query<C>(p) + row_of_warp(half);
}

/* Returns the query head of the warp's rows. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t head_of_warp(const flash_params_t &p,
                                                       const query_tile_t &tile) {
    return tile.head + (warp_row_of_group() << pack_shift<C>(p)) / SM90_WARPGROUP_ROWS;
}

#endif
