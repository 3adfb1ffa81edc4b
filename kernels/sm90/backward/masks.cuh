/*
 * What a mask hides in a block: of each of the thread's two rows of accumulators, the columns that
 * count are those between two ends.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_MASKS_CUH
#define FLASH_KERNELS_SM90_BACKWARD_MASKS_CUH

#include "sm90/backward/state.cuh"
#include "sm90/backward/tiles.cuh"
#include "sm90/fragments.cuh"

/* The columns that count for the thread's rows: keys that a query sees, or queries that see a
 * key. Where no window ends them, only the last key and the first query are looked at; then the
 * lower key's first query is 8 behind the upper one's. */
typedef struct seen {
    int32_t begin[2];
    int32_t end[2];
} seen_t;

/* The columns between which a window shows a row wait in shared memory for the few blocks that
 * need them. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t place_of_seen(int half) {
    return shared_address(shared_memory) + sm90_backward_shared_bytes(&C) -
           SM90_BACKWARD_SEEN_BYTES + tile_row(half) * (uint32_t)sizeof(float2);
}

/* Finds the columns of the thread's rows, of which row 0 has this number in the tile. */
template <flash_config_t C>
static __device__ __forceinline__ seen_t find_seen(const flash_params_t &p,
                                                   const gradient_tile_t &tile, int32_t number) {
    seen_t seen = {};
    if constexpr (writes_dq<C> || has_window<C>) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_range_t range = seen_by<C>(p, tile, tile.begin + number + half * 8);
            seen.begin[half] = range.begin;
            seen.end[half] = range.end;
            if (has_window<C> && threadIdx.x % 4 == half)
                shared_store(place_of_seen<C>(half),
                             float2{__int_as_float(range.begin), __int_as_float(range.end)});
        }
        if constexpr (has_window<C>)
            __syncwarp();
    } else {
        seen.begin[0] = tile.begin + number - keys_before(tile);
    }
    return seen;
}

/* Returns the same later. */
template <flash_config_t C>
static __device__ __forceinline__ seen_t recall_seen(const seen_t &seen) {
    seen_t kept = seen;
    if constexpr (has_window<C>) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 range = shared_load_pair(place_of_seen<C>(half));
            kept.begin[half] = __float_as_int(range.x);
            kept.end[half] = __float_as_int(range.y);
        }
    }
    return kept;
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
template <flash_config_t C, int N>
static __device__ __forceinline__ void hide(float (&x)[N], const seen_t &seen, int32_t first) {
    const seen_t kept = recall_seen<C>(seen);
    const seen_t from_first = {{kept.begin[0] - first, kept.begin[1] - first},
                               {kept.end[0] - first, kept.end[1] - first}};
#pragma unroll
    for (int i = 0; i < N; ++i)
        x[i] = sees<C>(from_first, i / 4 * 8 + i % 2, i / 2 % 2) ? x[i] : 0.0f;
}

#endif
