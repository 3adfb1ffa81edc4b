/*
 * This kernel merges the pieces of sequences that SM90_DECODE kernels have cut, in the order of the
 * pieces. A warp takes every n-th part of a row, since there are many rows, of a few pieces each.
 *
 * Like flash_sm80_decode_combine it is launched as the dependent of the decode kernel, and runs
 * once without results before the pieces exist.
 */
#include "common/decode/merge.cuh"
#include "common/ptx/dependent_launch.cuh"

enum { PIECES_AT_ONCE = 4 };

static __device__ __forceinline__ void merge_row(const decode_params_t &params,
                                                 const merge_row_t &row,
                                                 const decode_split_t &split,
                                                 const score_unit_t &unit) {
    const int column = row.first_column + (int)(threadIdx.x % DECODE_WARP_THREADS) * 4;
    const row_sum_t sum = sum_pieces<1, PIECES_AT_ONCE>(params, row, split, 0, column, unit.log2);
    store_merged(params, row, split, column, sum, unit);
}

extern "C" __global__ void __launch_bounds__(DECODE_WARP_THREADS *DECODE_COMBINE_WARPS)
    flash_sm90_decode_combine(const __grid_constant__ decode_params_t params) {
    const uint32_t warp = threadIdx.x / DECODE_WARP_THREADS;
    const score_unit_t unit = natural_unit_of_pieces(params);
    bool complete = false;
    uint32_t index = blockIdx.x * DECODE_COMBINE_WARPS + warp;
    if (index >= params.merge_parts)
        return;
    merge_row_t row = find_merge_part(params, index);
#pragma unroll 1
    for (;;) {
        const decode_split_t split = find_split(params, row, complete);
        if (complete && split.pieces == 0)
            return;
        merge_row(params, row, split, unit);
        if (!complete) {
            wait_for_primary();
            complete = true;
            continue;
        }
        index += gridDim.x * DECODE_COMBINE_WARPS;
        if (index >= params.merge_parts)
            return;
        row = find_merge_part(params, index);
    }
}
