/*
 * What a mask hides in a block: of each of the thread's two rows of accumulators, the columns that
 * count are those between two ends.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_MASKS_CUH
#define FLASH_KERNELS_SM90_BACKWARD_MASKS_CUH

#include "sm90/backward/tiles.cuh"
#include "sm90/fragments.cuh"

/* The columns that count for the thread's rows: keys that a query sees, or queries that see a
 * key. Where no window ends them, only the last key and the first query are looked at; then the
 * lower key's first query is 8 behind the upper one's. */
typedef struct seen {
    int32_t begin[2];
    int32_t end[2];
} seen_t;

/* Finds the columns of the thread's rows. consumer_row: that of its row 0 in the tile. */
template <flash_config_t C>
static __device__ __forceinline__ seen_t find_seen(const flash_params_t &p,
                                                   const gradient_tile_t &tile,
                                                   int32_t consumer_row) {
    seen_t seen;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int32_t row = tile.begin + consumer_row + half * 8;
        const flash_range_t range = seen_by<C>(p, tile, row);
        seen.begin[half] = range.begin;
        seen.end[half] = range.end;
    }
    if constexpr (!writes_dq<C> && !has_window<C>)
        seen.begin[0] = tile.begin + consumer_row - keys_before(tile);
    return seen;
}

/* Says whether a row of the thread's, the upper or 8 below, sees a column. */
template <flash_config_t C>
static __device__ __forceinline__ bool sees(const seen_t &seen, int32_t column, int half) {
    if constexpr (has_window<C>)
        return column >= seen.begin[half] && column < seen.end[half];
    else if constexpr (writes_dq<C>)
        return column < seen.end[half];
    else
        return column - 8 * half >= seen.begin[0];
}

/* Makes accumulators of what does not count 0. first: the thread's first column. */
template <flash_config_t C>
static __device__ __forceinline__ void hide(float (&x)[step_rows<C> / 2], const seen_t &seen,
                                            int32_t first) {
    const seen_t from_first = {{seen.begin[0] - first, seen.begin[1] - first},
                               {seen.end[0] - first, seen.end[1] - first}};
#pragma unroll
    for (int i = 0; i < step_rows<C> / 2; ++i)
        x[i] = sees<C>(from_first, i / 4 * 8 + i % 2, i / 2 % 2) ? x[i] : 0.0f;
}

#endif
