/*
 * Merges the pieces of sequences that SM90_DECODE kernels have cut, in the order of the pieces: a
 * warp for each row, since there are many rows, of a few pieces each.
 *
 * Launched as the dependent of the decode kernel, it goes once through the motions until the pieces
 * are there, as flash_sm80_decode_combine does.
 */
#include "common/decode/merge.cuh"
#include "common/ptx/dependent_launch.cuh"

enum { PIECES_AT_ONCE = 4 };

extern "C" __global__ void __launch_bounds__(DECODE_WARP_THREADS *DECODE_COMBINE_WARPS)
    flash_sm90_decode_combine(const __grid_constant__ decode_params_t params) {
    const uint32_t warp = threadIdx.x / DECODE_WARP_THREADS;
    const uint32_t index = blockIdx.x * DECODE_COMBINE_WARPS + warp;
    const score_unit_t unit = score_unit_of<true>(params.attention);
#pragma unroll 1
    for (int complete = 0; complete < 2; ++complete) {
        if (complete)
            wait_for_primary();
        const split_row_t row = find_split_row(params, index, complete);
        if (complete && row.split.pieces == 0)
            return;
#pragma unroll 1
        for (int begin = 0; begin < params.columns; begin += COLUMNS_AT_ONCE) {
            const int column = begin + (int)(threadIdx.x % DECODE_WARP_THREADS) * 4;
            const row_sum_t sum = sum_pieces<1, PIECES_AT_ONCE>(params, row, 0, column, unit.log2);
            store_merged(params, row, column, sum, unit);
        }
    }
}
