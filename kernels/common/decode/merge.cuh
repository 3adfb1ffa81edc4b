/*
 * Kernels that run after decode kernels merge the pieces of a row in an order that follows from
 * their numbers. A warp takes 128 columns, a part of a row, four per lane.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_MERGE_CUH
#define FLASH_KERNELS_COMMON_DECODE_MERGE_CUH

#include "common/decode/store.cuh"
#include "common/natural_bias.cuh"

/* A part of a row that may be merged, as far as the host's plan says. */
typedef struct merge_row {
    int32_t first_column;
    int32_t split; /* number of the sequence among those that were cut */
    int32_t head_kv;
    int32_t number;       /* row of the K/V head */
    int64_t in_piece;     /* its index in the partial results of a piece */
    int64_t piece_stride; /* partial rows of a piece */
    float sink;
} merge_row_t;

typedef struct row_sum {
    float4 o;
    decode_weight_t weight;
} row_sum_t;

/* Returns part `index` of all rows that may be merged. Its sink is loaded before the pieces, which
 * have none. */
static __device__ __forceinline__ merge_row_t find_merge_part(const decode_params_t &params,
                                                              uint32_t index) {
    const flash_params_t &p = params.attention;
    const uint32_t rows = (uint32_t)p.seqlen_q * (uint32_t)p.group;
    const uint32_t part = index % (uint32_t)params.row_parts;
    index /= (uint32_t)params.row_parts;
    const uint32_t heads = index / rows;
    merge_row_t row;
    row.first_column = (int32_t)part * DECODE_MERGE_COLUMNS;
    row.split = (int32_t)(heads / (uint32_t)p.n_heads_kv);
    row.head_kv = (int32_t)(heads % (uint32_t)p.n_heads_kv);
    row.number = (int32_t)(index % rows);
    const int32_t head_block = row.head_kv / params.heads_per_block;
    const int32_t tile = row.number / params.row_tile;
    const int32_t slot_rows = params.heads_per_block * params.row_tile;
    row.in_piece = ((int64_t)tile * params.head_blocks + head_block) * slot_rows +
                   row.head_kv % params.heads_per_block * params.row_tile +
                   row.number % params.row_tile;
    row.piece_stride = (int64_t)params.row_tiles * params.head_blocks * slot_rows;
    row.sink = load_sink(p, row.head_kv, find_row(params, row.number));
    return row;
}

/* Returns how the row's sequence was cut; pieces is 0 if it was not. Until the decode kernel is
 * complete, it is not known how the device has cut the batch. */
static __device__ __forceinline__ decode_split_t find_split(const decode_params_t &params,
                                                            const merge_row_t &row, bool complete) {
    if (!complete)
        return {0, 0, 0};
    if (params.pieces > 0)
        return {row.split, row.split * params.pieces, params.pieces};
    /* Both are loaded at the same time: there is memory for as many as may be cut. */
    const decode_split_t split = params.splits[row.split];
    const int32_t n_splits = *params.n_splits;
    return row.split < n_splits ? split : decode_split_t{0, 0, 0};
}

/* Adds AT_ONCE pieces to the sum: every WARPS-th one from `first` on. */
template <int WARPS, int AT_ONCE>
static __device__ __forceinline__ row_sum_t add_pieces(const decode_params_t &params,
                                                       const merge_row_t &row,
                                                       const decode_split_t &split, row_sum_t sum,
                                                       int32_t first, int column, float log2_unit) {
    decode_weight_t weight[AT_ONCE];
    float4 o[AT_ONCE];
    float max = sum.weight.max;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        const int32_t piece = first + i * WARPS;
        const bool exists = piece < split.pieces;
        const int64_t at =
            exists ? (split.first_piece + piece) * row.piece_stride + row.in_piece : 0;
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

/* Returns the unit of maxima that kernels of SM90 families have left. */
static __device__ __forceinline__ score_unit_t
natural_unit_of_pieces(const decode_params_t &params) {
    return params.natural_scores ? natural_biased_unit()
                                 : natural_unit_after_bias(params.attention.bias,
                                                           score_unit_of<true>(params.attention));
}

static __device__ __forceinline__ row_sum_t empty_sum() {
    return {{0.0f, 0.0f, 0.0f, 0.0f}, {-INFINITY, 0.0f}};
}

/* Sums four columns of the row over every WARPS-th piece from `first` on. */
template <int WARPS, int AT_ONCE>
static __device__ __forceinline__ row_sum_t sum_pieces(const decode_params_t &params,
                                                       const merge_row_t &row,
                                                       const decode_split_t &split, int32_t first,
                                                       int column, float log2_unit) {
    row_sum_t sum = empty_sum();
    int32_t piece = first;
    do {
        sum = add_pieces<WARPS, AT_ONCE>(params, row, split, sum, piece, column, log2_unit);
        piece += WARPS * AT_ONCE;
    } while (piece < split.pieces);
    return sum;
}

static __device__ __forceinline__ void
store_merged(const decode_params_t &params, const merge_row_t &row, const decode_split_t &split,
             int column, const row_sum_t &sum, const score_unit_t &unit) {
    const flash_params_t &p = params.attention;
    decode_block_t block;
    block.piece.batch_index = split.batch_index;
    block.sequence = flash_sequence(&p, split.batch_index);
    const head_row_t at = find_row(params, row.number);
    if (split.pieces > 0 && at.query < block.sequence.len_q)
        store_row(params, find_output_row(params, block, row.head_kv, at), column, sum.o,
                  sum.weight, row.sink, unit);
}

#endif
