/*
 * The end of a piece: O and LSE leave from registers, or a partial result for the kernel that
 * merges pieces. Neighbouring threads of a quad exchange columns, so that each has four next to
 * each other.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_RESULT_CUH
#define FLASH_KERNELS_SM90_DECODE_RESULT_CUH

#include "common/decode/store.cuh"
#include "sm90/decode/consumer.cuh"

/* Returns four columns of a row half, of sixteen from 16 i on: an even thread has them in the first
 * eight, an odd one in the second. */
template <flash_config_t C>
static __device__ __forceinline__ float4 four_columns(const output_tile<C> &o, int half, int i) {
    const bool odd = threadIdx.x % 2;
    const float *first = &o.o[8 * i + 2 * half], *second = first + 4;
    const float x = __shfl_xor_sync(0xffffffffu, odd ? first[0] : second[0], 1);
    const float y = __shfl_xor_sync(0xffffffffu, odd ? first[1] : second[1], 1);
    return odd ? float4{x, y, second[0], second[1]} : float4{first[0], first[1], x, y};
}

static __device__ __forceinline__ int four_column(int i) {
    return 16 * i + threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4;
}

/* Stores columns of a row of a piece that is one of several. */
template <flash_config_t C>
static __device__ __forceinline__ void store_partial(const decode_params_t &params, int row,
                                                     int column, float4 sum,
                                                     const decode_weight_t &weight) {
    const int64_t partial = (int64_t)blockIdx.x * C.B_r + row;
    *(float4 *)(params.partial_o + partial * C.d_head + column) = sum;
    if (column == 0)
        params.partial_weights[partial] = weight;
}

template <flash_config_t C>
static __device__ __forceinline__ void
finish_half(const decode_params_t &params, const decode_block_t &block, const row_state<C> &rows,
            int half, const score_unit_t &unit) {
    const int row = tile_row(half);
    const bool exists = row < block.rows;
    const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
    const output_row_t to = find_output_row(params, block, block.first_head_kv, at);
    const decode_weight_t weight = {rows.softmax.max[half], rows.softmax.sum[half]};
#pragma unroll
    for (int i = 0; i < C.d_head / 16; ++i) {
        const float4 sum = four_columns<C>(rows.o, half, i);
        if (exists && is_whole(block.piece))
            store_row(params, to, four_column(i), sum, weight, unit);
        else if (exists)
            store_partial<C>(params, row, four_column(i), sum, weight);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void finish_rows(const decode_params_t &params,
                                                   const decode_block_t &block, row_state<C> &rows,
                                                   const score_unit_t &unit) {
    finish_sums(rows.softmax);
    finish_half<C>(params, block, rows, 0, unit);
    finish_half<C>(params, block, rows, 1, unit);
}

#endif
