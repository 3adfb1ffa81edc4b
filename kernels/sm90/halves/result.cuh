/*
 * At the end of a piece its O and LSE are stored, or a partial result for the kernel that merges
 * pieces. Each warp lays its sixteen rows of half of the columns over Q and K, in fp32, and stores
 * them row by row.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_RESULT_CUH
#define FLASH_KERNELS_SM90_HALVES_RESULT_CUH

#include "common/decode/store.cuh"
#include "sm90/decode/result.cuh"
#include "sm90/halves/consumer.cuh"

constexpr int halves_warp_rows = 16;

/* Bytes that a warp has for what it lays, in panels of sixteen rows of 32 columns. */
constexpr int laid_panel_bytes = halves_warp_rows * SM90_PANEL_BYTES;
template <flash_config_t C> constexpr int laid_bytes = half_columns<C> / 32 * laid_panel_bytes;

/* Returns the address of a chunk of four columns, of the consumer's half, in a row of the warp. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t half_laid_place(int row, int chunk) {
    const int warp = threadIdx.x / warp_threads - warpgroup_warps;
    return q_tile<C>(0) + warp * laid_bytes<C> + chunk / 8 * laid_panel_bytes +
           row * SM90_PANEL_BYTES + (chunk % 8 ^ row % 8) * SM90_CHUNK_BYTES;
}

template <flash_config_t C>
static __device__ __forceinline__ void lay_half(const float (&o)[half_registers<C>]) {
#pragma unroll
    for (int i = 0; i < half_columns<C> / 8; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float *pair = &o[i * 4 + 2 * half];
            const int row = half * 8 + (int)lane_index() / 4;
            const uint32_t address = half_laid_place<C>(row, 2 * i + tile_column() / 4);
            shared_store(address + tile_column() % 4 * (int)sizeof(float),
                         float2{pair[0], pair[1]});
        }
}

/* Leaves the weights of consumer 0's rows for both. */
template <flash_config_t C>
static __device__ __forceinline__ void leave_weights(const softmax_state_t &softmax) {
    if (threadIdx.x % 4 != 0)
        return;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        exchange<C>().weights[group_row() + 8 * half] = {softmax.max[half], softmax.sum[half]};
}

/* Stores the columns that the warp has laid. sink: of row lane % 16 of the warp. */
template <flash_config_t C>
static __device__ __forceinline__ void store_half(const decode_params_t &params,
                                                  const decode_block_t &block, int number,
                                                  float sink, const score_unit_t &unit) {
#pragma unroll 1
    for (int row = 0; row < halves_warp_rows; ++row) {
        const int of_tile = warp_row_of_group() + row;
        const decode_weight_t weight = exchange<C>().weights[of_tile];
        const float of_row = __shfl_sync(0xffffffffu, sink, row);
#pragma unroll
        for (int first = 0; first < half_columns<C>; first += 4 * warp_threads) {
            const int chunk = first / 4 + (int)lane_index();
            finish_columns<C>(params, block, of_tile, number * half_columns<C> + chunk * 4,
                              load_columns(half_laid_place<C>(row, chunk)), weight, of_row, unit);
        }
    }
}

/* Stores the consumer's half when both have multiplied by all blocks. Consumer 0 has left weights
 * before. */
template <flash_config_t C>
static __device__ __forceinline__ void
finish_half(const decode_params_t &params, const decode_block_t &block,
            const float (&o)[half_registers<C>], int number, float sink, const score_unit_t &unit) {
    static_assert(consumers<C> * warpgroup_warps * laid_bytes<C> <=
                      q_bytes<C> + C.n_stages * halves_stage_bytes(&C),
                  "laid over Q and K");
    meet_consumers<C>();
    lay_half<C>(o);
    __syncwarp();
    store_half<C>(params, block, number, sink, unit);
}

#endif
