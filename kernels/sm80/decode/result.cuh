/*
 * At the end of a piece the warps of a head merge their results, in the order of their numbers.
 * They store O and LSE, or a partial result for the kernel that merges pieces.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_RESULT_CUH
#define FLASH_KERNELS_SM80_DECODE_RESULT_CUH

#include "common/decode/store.cuh"
#include "sm80/decode/softmax.cuh"

/* Returns a warp's rows of O in fp32, which lie over its ring; their weights follow. */
template <flash_config_t C>
static __device__ __forceinline__ float *warp_output(unsigned char *shared, int32_t warp) {
    return (float *)(shared + warp * warp_ring_bytes<C>);
}

template <flash_config_t C>
static __device__ __forceinline__ decode_weight_t *warp_weights(unsigned char *shared,
                                                                int32_t warp) {
    return (decode_weight_t *)(warp_output<C>(shared, warp) + C.B_r * result_pitch<C>);
}

/* Leaves the warp's results over its ring. All its lanes have read the last slot. */
template <flash_config_t C>
static __device__ __forceinline__ void stage_results(unsigned char *shared, const output_tile<C> &o,
                                                     const softmax_state<C> &state) {
    const int warp = threadIdx.x / DECODE_WARP_THREADS, lane = threadIdx.x % DECODE_WARP_THREADS;
    float *output = warp_output<C>(shared, warp);
    decode_weight_t *weights = warp_weights<C>(shared, warp);
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int row = n * 8 + lane % 4 * 2 + j;
            const float sum = row_sum(state.sum[n][j]);
            if (lane / 4 == 0)
                weights[row] = {state.max[n][j], sum};
#pragma unroll
            for (int d = 0; d < head_tiles<C>; ++d)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    output[row * result_pitch<C> + output_column<C>(d, half)] =
                        o.of[n][d][2 * half + j];
        }
}

/* The sinks of the block's rows, for each of its K/V heads. */
template <flash_config_t C> struct row_sinks { float of[DECODE_MOST_HEADS_PER_BLOCK][C.B_r]; };

/* Loads the sinks, for finish_block(). */
template <flash_config_t C>
static __device__ __forceinline__ void
stage_sinks(const sm80_decode_params_t &params, const decode_block_t &block, row_sinks<C> &sinks) {
    static_assert(DECODE_MOST_HEADS_PER_BLOCK * C.B_r <= decode_block_threads(&C), "one each");
    const int head = (int)threadIdx.x / C.B_r, row = (int)threadIdx.x % C.B_r;
    if (head < params.heads_per_block && row < block.rows)
        sinks.of[head][row] = load_sink(params.attention, block.first_head_kv + head,
                                        find_row(params, block.row_begin + row));
}

/* Four columns of a row, and the row's weight, over the warps of its head. */
typedef struct merged_columns {
    float4 sum;
    decode_weight_t weight;
} merged_columns_t;

template <flash_config_t C>
static __device__ __forceinline__ merged_columns_t merge_warps(unsigned char *shared, int head,
                                                               int32_t heads, int row, int column,
                                                               float log2_unit) {
    merged_columns_t merged = {{0.0f, 0.0f, 0.0f, 0.0f}, {-INFINITY, 0.0f}};
#pragma unroll 1
    for (int warp = head; warp < C.n_warps; warp += heads)
        merged.weight.max = fmaxf(merged.weight.max, warp_weights<C>(shared, warp)[row].max);
#pragma unroll 1
    for (int warp = head; warp < C.n_warps; warp += heads) {
        const decode_weight_t partial = warp_weights<C>(shared, warp)[row];
        const float4 columns =
            *(const float4 *)(warp_output<C>(shared, warp) + row * result_pitch<C> + column);
        const float weight = relative_weight(partial.max, merged.weight.max, log2_unit);
        merged.weight.sum += partial.sum * weight;
        merged.sum = add_weighted(merged.sum, columns, weight);
    }
    return merged;
}

/* Finishes row `row` of head `head` of the block, four columns from `column` on. */
template <flash_config_t C>
static __device__ __forceinline__ void
finish_columns(const sm80_decode_params_t &params, const decode_block_t &block,
               unsigned char *shared, const row_sinks<C> &sinks, int head, int row, int column,
               const score_unit_t &unit) {
    const int32_t heads = params.heads_per_block;
    const merged_columns_t merged = merge_warps<C>(shared, head, heads, row, column, unit.log2);
    store_piece_row<C, C.d_head>(params, block, head, row, column, merged.sum, merged.weight,
                                 sinks.of[head][row], unit);
}

/* Stores the block's results. Every warp has left its own in shared memory. */
template <flash_config_t C>
static __device__ __forceinline__ void
finish_block(const sm80_decode_params_t &params, const decode_block_t &block, unsigned char *shared,
             const row_sinks<C> &sinks, const score_unit_t &unit) {
    constexpr int fours = C.d_head / 4;
    if (threadIdx.x == 0)
        record_split(params, block);
#pragma unroll 1
    for (int head = 0; head < params.heads_per_block; ++head)
#pragma unroll 1
        for (int i = threadIdx.x; i < block.rows * fours; i += decode_block_threads(&C))
            finish_columns<C>(params, block, shared, sinks, head, i / fours, i % fours * 4, unit);
}

#endif
