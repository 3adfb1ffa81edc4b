/*
 * A thread shares rows of S and O with the other threads of its quad: in each tile of 16 rows, row
 * lane / 4 and the row 8 below.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_ROWS_CUH
#define FLASH_KERNELS_SM80_FORWARD_ROWS_CUH

#include "sm80/forward/derive.cuh"

/* Returns the row, in the query tile, of this thread's half 0 or 1 of tile m. */
template <flash_config_t C> static __device__ __forceinline__ int tile_row(int m, int half) {
    const int warp = threadIdx.x / SM80_WARP_THREADS;
    const int lane = threadIdx.x % SM80_WARP_THREADS;
    return warp * warp_rows<C> + m * 16 + half * 8 + lane / 4;
}

/* Returns the first of the thread's two columns in a tile of 8. */
static __device__ __forceinline__ int tile_column() {
    return threadIdx.x % 4 * 2;
}

#endif
