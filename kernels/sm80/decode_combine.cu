/*
 * This kernel merges the pieces of sequences that decode kernels have cut, in the order of the
 * pieces. A block takes every n-th part of a row, and a warp every n-th piece.
 *
 * It starts as a programmatic dependent launch of the decode kernel, before the pieces exist. Until
 * they do, it runs once without loads and stores of results, which brings its instructions and
 * parameters into the caches: from memory they take several microseconds.
 */
#include "common/bias.cuh"
#include "common/decode/merge.cuh"
#include "common/ptx/dependent_launch.cuh"

enum { PIECES_AT_ONCE = 8 };

static __device__ __forceinline__ row_sum_t
merge_warps(const row_sum_t (&sums)[DECODE_COMBINE_WARPS][DECODE_WARP_THREADS], float log2_unit) {
    const int lane = threadIdx.x % DECODE_WARP_THREADS;
    row_sum_t merged = empty_sum();
#pragma unroll
    for (int w = 0; w < DECODE_COMBINE_WARPS; ++w)
        merged.weight.max = fmaxf(merged.weight.max, sums[w][lane].weight.max);
#pragma unroll
    for (int w = 0; w < DECODE_COMBINE_WARPS; ++w) {
        const row_sum_t &partial = sums[w][lane];
        const float factor = relative_weight(partial.weight.max, merged.weight.max, log2_unit);
        merged.o = add_weighted(merged.o, partial.o, factor);
        merged.weight.sum += partial.weight.sum * factor;
    }
    return merged;
}

static __device__ __forceinline__ void
merge_row(const decode_params_t &params, const merge_row_t &row, const decode_split_t &split,
          row_sum_t (&sums)[DECODE_COMBINE_WARPS][DECODE_WARP_THREADS], const score_unit_t &unit) {
    const int warp = threadIdx.x / DECODE_WARP_THREADS, lane = threadIdx.x % DECODE_WARP_THREADS;
    const int column = row.first_column + lane * 4;
    sums[warp][lane] = sum_pieces<DECODE_COMBINE_WARPS, PIECES_AT_ONCE>(params, row, split, warp,
                                                                        column, unit.log2);
    __syncthreads();
    if (warp == 0)
        store_merged(params, row, split, column, merge_warps(sums, unit.log2), unit);
    __syncthreads();
}

/* Returns the unit of the scores that the decode kernel's softmax has seen. */
static __device__ __forceinline__ score_unit_t unit_of(const decode_params_t &params) {
    const flash_bias_t &bias = params.attention.bias;
    const score_unit_t before = score_unit_of<true>(params.attention);
    return params.natural_bias ? natural_unit_of_pieces(params) : unit_after_bias(bias, before);
}

extern "C" __global__ void __launch_bounds__(DECODE_WARP_THREADS *DECODE_COMBINE_WARPS)
    flash_sm80_decode_combine(const __grid_constant__ decode_params_t params) {
    __shared__ row_sum_t sums[DECODE_COMBINE_WARPS][DECODE_WARP_THREADS];
    const score_unit_t unit = unit_of(params);
    bool complete = false;
    uint32_t index = blockIdx.x;
    merge_row_t row = find_merge_part(params, index);
#pragma unroll 1
    for (;;) {
        const decode_split_t split = find_split(params, row, complete);
        if (complete && split.pieces == 0)
            return;
        merge_row(params, row, split, sums, unit);
        if (!complete) {
            wait_for_primary();
            complete = true;
            continue;
        }
        index += gridDim.x;
        if (index >= params.merge_parts)
            return;
        row = find_merge_part(params, index);
    }
}
