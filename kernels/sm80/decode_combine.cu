/*
 * Merges the pieces of sequences that decode kernels have cut, in the order of the pieces: a block
 * for each row, a warp for every n-th piece.
 *
 * Launched as the dependent of the decode kernel, it is there before the pieces are. Until then it
 * goes once through the motions, without loads and stores of results, so that its instructions and
 * parameters are in the caches when they are wanted: from memory they take several microseconds.
 */
#include "common/decode/store.cuh"
#include "common/ptx/dependent_launch.cuh"

enum { COLUMNS_AT_ONCE = 4 * DECODE_WARP_THREADS, PIECES_AT_ONCE = 8 };

/* A row of one K/V head of a sequence that was cut. */
typedef struct split_row {
    decode_split_t split;
    int32_t head_kv;
    int32_t number; /* row of the K/V head */
} split_row_t;

typedef struct row_sum {
    float4 o;
    decode_weight_t weight;
} row_sum_t;

/* The block's row; pieces 0: it has none. Before the decode kernel is complete it is not known
 * where the device has cut the batch. */
static __device__ __forceinline__ split_row_t find_split_row(const decode_params_t &params,
                                                             bool complete) {
    const flash_params_t &p = params.attention;
    const uint32_t rows = (uint32_t)p.seqlen_q * (uint32_t)p.group;
    const uint32_t heads = blockIdx.x / rows;
    const int32_t number = (int32_t)(heads / (uint32_t)p.n_heads_kv);
    split_row_t row = {{number, number * params.pieces, params.pieces},
                       (int32_t)(heads % (uint32_t)p.n_heads_kv),
                       (int32_t)(blockIdx.x % rows)};
    if (params.pieces == 0 && complete) {
        if (number < *params.n_splits)
            row.split = params.splits[number];
    } else if (!complete) {
        row.split = {0, 0, 0};
    }
    return row;
}

/* The place of the row in the partial results of piece i of its sequence. */
static __device__ __forceinline__ int64_t partial_row(const decode_params_t &params,
                                                      const split_row_t &row, int32_t i) {
    const int32_t tile = row.number / params.row_tile;
    const int32_t head_block = row.head_kv / params.heads_per_block;
    const int64_t slot =
        ((int64_t)(row.split.first_piece + i) * params.row_tiles + tile) * params.head_blocks +
        head_block;
    return (slot * params.heads_per_block + row.head_kv % params.heads_per_block) *
               params.row_tile +
           row.number % params.row_tile;
}

/* sum + the pieces from `first` on that the warp has, as many as are loaded at once. */
static __device__ __forceinline__ row_sum_t add_pieces(const decode_params_t &params,
                                                       const split_row_t &row, row_sum_t sum,
                                                       int32_t first, int column, float log2_unit) {
    decode_weight_t weight[PIECES_AT_ONCE];
    float4 o[PIECES_AT_ONCE];
    float max = sum.weight.max;
#pragma unroll
    for (int i = 0; i < PIECES_AT_ONCE; ++i) {
        const int32_t piece = first + i * DECODE_COMBINE_WARPS;
        const bool exists = piece < row.split.pieces;
        const int64_t at = exists ? partial_row(params, row, piece) : 0;
        weight[i] = exists ? params.partial_weights[at] : decode_weight_t{-INFINITY, 0.0f};
        o[i] = exists && column < params.columns
                   ? *(const float4 *)(params.partial_o + at * params.columns + column)
                   : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < PIECES_AT_ONCE; ++i)
        max = fmaxf(max, weight[i].max);
    const float before = relative_weight(sum.weight.max, max, log2_unit);
    sum.o = add_weighted(float4{0.0f, 0.0f, 0.0f, 0.0f}, sum.o, before);
    sum.weight = {max, sum.weight.sum * before};
#pragma unroll
    for (int i = 0; i < PIECES_AT_ONCE; ++i) {
        const float factor = relative_weight(weight[i].max, max, log2_unit);
        sum.o = add_weighted(sum.o, o[i], factor);
        sum.weight.sum += weight[i].sum * factor;
    }
    return sum;
}

static __device__ __forceinline__ row_sum_t empty_sum() {
    return {{0.0f, 0.0f, 0.0f, 0.0f}, {-INFINITY, 0.0f}};
}

/* Sums four columns of the row over every n-th piece. */
static __device__ __forceinline__ row_sum_t sum_own_pieces(const decode_params_t &params,
                                                           const split_row_t &row, int column,
                                                           float log2_unit) {
    row_sum_t sum = empty_sum();
    int32_t piece = threadIdx.x / DECODE_WARP_THREADS;
    do {
        sum = add_pieces(params, row, sum, piece, column, log2_unit);
        piece += DECODE_COMBINE_WARPS * PIECES_AT_ONCE;
    } while (piece < row.split.pieces);
    return sum;
}

static __device__ __forceinline__ row_sum_t
merge_warps(const row_sum_t (&sums)[DECODE_COMBINE_WARPS][DECODE_WARP_THREADS], float log2_unit) {
    const int lane = threadIdx.x % DECODE_WARP_THREADS;
    row_sum_t merged = empty_sum();
#pragma unroll
    for (int w = 0; w < DECODE_COMBINE_WARPS; ++w)
        merged.weight.max = fmaxf(merged.weight.max, sums[w][lane].weight.max);
#pragma unroll
    for (int w = 0; w < DECODE_COMBINE_WARPS; ++w) {
        const row_sum_t &own = sums[w][lane];
        const float factor = relative_weight(own.weight.max, merged.weight.max, log2_unit);
        merged.o = add_weighted(merged.o, own.o, factor);
        merged.weight.sum += own.weight.sum * factor;
    }
    return merged;
}

static __device__ __forceinline__ void store_merged(const decode_params_t &params,
                                                    const split_row_t &row, int column,
                                                    const row_sum_t &sum,
                                                    const score_unit_t &unit) {
    const flash_params_t &p = params.attention;
    decode_block_t block;
    block.piece.batch_index = row.split.batch_index;
    block.sequence = flash_sequence(&p, row.split.batch_index);
    const head_row_t at = find_row(params, row.number);
    if (row.split.pieces > 0 && at.query < block.sequence.len_q)
        store_row(params, find_output_row(params, block, row.head_kv, at), column, sum.o,
                  sum.weight, unit);
}

extern "C" __global__ void __launch_bounds__(DECODE_WARP_THREADS *DECODE_COMBINE_WARPS)
    flash_sm80_decode_combine(const __grid_constant__ decode_params_t params) {
    __shared__ row_sum_t sums[DECODE_COMBINE_WARPS][DECODE_WARP_THREADS];
    const int warp = threadIdx.x / DECODE_WARP_THREADS, lane = threadIdx.x % DECODE_WARP_THREADS;
    const score_unit_t unit = score_unit_of<true>(params.attention);
#pragma unroll 1
    for (int complete = 0; complete < 2; ++complete) {
        if (complete)
            wait_for_primary();
        const split_row_t row = find_split_row(params, complete);
        if (complete && row.split.pieces == 0)
            return;
#pragma unroll 1
        for (int begin = 0; begin < params.columns; begin += COLUMNS_AT_ONCE) {
            const int column = begin + lane * 4;
            sums[warp][lane] = sum_own_pieces(params, row, column, unit.log2);
            __syncthreads();
            if (warp == 0)
                store_merged(params, row, column, merge_warps(sums, unit.log2), unit);
            __syncthreads();
        }
    }
}
