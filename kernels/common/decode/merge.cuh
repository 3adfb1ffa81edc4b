/*
 * Kernels that run after decode kernels merge the pieces of a row in an order that follows from
 * their numbers. A warp takes 128 columns at a time, four per lane; a row may have several warps.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_MERGE_CUH
#define FLASH_KERNELS_COMMON_DECODE_MERGE_CUH

#include "common/decode/store.cuh"

enum { COLUMNS_AT_ONCE = 4 * DECODE_WARP_THREADS };

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

/* Returns row `index` of all rows that may be merged; split.pieces is 0 if there is none. Until the
 * decode kernel is complete, it is not known how the device has cut the batch. */
static __device__ __forceinline__ split_row_t find_split_row(const decode_params_t &params,
                                                             uint32_t index, bool complete) {
    const flash_params_t &p = params.attention;
    const uint32_t rows = (uint32_t)p.seqlen_q * (uint32_t)p.group;
    const uint32_t heads = index / rows;
    const int32_t number = (int32_t)(heads / (uint32_t)p.n_heads_kv);
    split_row_t row = {{number, number * params.pieces, params.pieces},
                       (int32_t)(heads % (uint32_t)p.n_heads_kv),
                       (int32_t)(index % rows)};
    if (params.pieces == 0 && complete) {
        if (number < *params.n_splits)
            row.split = params.splits[number];
    } else if (!complete || number >= p.batch) {
        row.split = {0, 0, 0};
    }
    return row;
}

/* Returns the index of the row in the partial results of piece i of its sequence. */
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

/* Adds AT_ONCE pieces to the sum: every WARPS-th one from `first` on. */
template <int WARPS, int AT_ONCE>
static __device__ __forceinline__ row_sum_t add_pieces(const decode_params_t &params,
                                                       const split_row_t &row, row_sum_t sum,
                                                       int32_t first, int column, float log2_unit) {
    decode_weight_t weight[AT_ONCE];
    float4 o[AT_ONCE];
    float max = sum.weight.max;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        const int32_t piece = first + i * WARPS;
        const bool exists = piece < row.split.pieces;
        const int64_t at = exists ? partial_row(params, row, piece) : 0;
        weight[i] = exists ? params.partial_weights[at] : decode_weight_t{-INFINITY, 0.0f};
        o[i] = exists && column < params.columns
                   ? *(const float4 *)(params.partial_o + at * params.columns + column)
                   : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
        max = fmaxf(max, weight[i].max);
    const float before = relative_weight(sum.weight.max, max, log2_unit);
    sum.o = add_weighted(float4{0.0f, 0.0f, 0.0f, 0.0f}, sum.o, before);
    sum.weight = {max, sum.weight.sum * before};
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        const float factor = relative_weight(weight[i].max, max, log2_unit);
        sum.o = add_weighted(sum.o, o[i], factor);
        sum.weight.sum += weight[i].sum * factor;
    }
    return sum;
}

static __device__ __forceinline__ row_sum_t empty_sum() {
    return {{0.0f, 0.0f, 0.0f, 0.0f}, {-INFINITY, 0.0f}};
}

/* Sums four columns of the row over every WARPS-th piece from `first` on. */
template <int WARPS, int AT_ONCE>
static __device__ __forceinline__ row_sum_t sum_pieces(const decode_params_t &params,
                                                       const split_row_t &row, int32_t first,
                                                       int column, float log2_unit) {
    row_sum_t sum = empty_sum();
    int32_t piece = first;
    do {
        sum = add_pieces<WARPS, AT_ONCE>(params, row, sum, piece, column, log2_unit);
        piece += WARPS * AT_ONCE;
    } while (piece < row.split.pieces);
    return sum;
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

#endif
