/*
 * At the end of a piece its O and LSE are stored, or a partial result for the kernel that merges
 * pieces. Each warp lays its columns of 16 rows at a time over the ring, in fp32, and stores them
 * row by row.
 */
#ifndef FLASH_KERNELS_SM80_MLA_RESULT_CUH
#define FLASH_KERNELS_SM80_MLA_RESULT_CUH

#include "common/decode/store.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/mla/softmax.cuh"

template <flash_config_t C> constexpr int laid_row_bytes = warp_columns<C> *(int)sizeof(float);
template <flash_config_t C>
constexpr int laid_bytes = SM80_MLA_ROW_GROUP *laid_row_bytes<C>; /* of a warp */

/* Returns the address of four columns of a row of the group, among those of the warp. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t laid_place(uint32_t ring, int row, int chunk) {
    return ring + warp_number() * laid_bytes<C> + row * laid_row_bytes<C> +
           (chunk ^ row % 8) * DECODE_CHUNK_BYTES;
}

template <flash_config_t C>
static __device__ __forceinline__ void lay_columns(uint32_t ring,
                                                   const float (&o)[column_tiles<C>][4]) {
#pragma unroll
    for (int n = 0; n < column_tiles<C>; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int pair = lane_number() % 4;
            const uint32_t place =
                laid_place<C>(ring, half * 8 + lane_number() / 4, 2 * n + pair / 2);
            shared_store(place + pair % 2 * (int)sizeof(float2),
                         float2{o[n][2 * half], o[n][2 * half + 1]});
        }
}

static __device__ __forceinline__ float4 load_columns(uint32_t address) {
    const uint4 bits = shared_load(address);
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
            __uint_as_float(bits.w)};
}

/* Leaves the maxima and sums of the warp's rows. */
template <flash_config_t C>
static __device__ __forceinline__ void leave_weights(mla_exchange<C> &shared,
                                                     const softmax_state_t &state) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float sum = quad_sum(state.sum[half]);
        if (lane_number() % 4 != 0)
            continue;
        shared.sum[score_part<C>()][score_row<C>() + 8 * half] = sum;
        if (score_part<C>() == 0)
            shared.max[score_row<C>() + 8 * half] = state.max[half];
    }
}

template <flash_config_t C>
static __device__ __forceinline__ decode_weight_t row_weight(const mla_exchange<C> &shared,
                                                             int row) {
    decode_weight_t weight = {shared.max[row], 0.0f};
#pragma unroll
    for (int part = 0; part < sharing_warps<C>; ++part)
        weight.sum += shared.sum[part][row];
    return weight;
}

/* Stores the columns that the warp has laid, of a group of rows. */
template <flash_config_t C>
static __device__ __forceinline__ void
store_columns(const sm80_decode_params_t &params, const decode_block_t &block, uint32_t ring,
              const mla_exchange<C> &shared, int group, const score_unit_t &unit) {
    constexpr int chunks = warp_columns<C> / 4;
    constexpr int rows_at_once = DECODE_WARP_THREADS / chunks;
    const int chunk = lane_number() % chunks;
#pragma unroll 1
    for (int i = lane_number() / chunks; i < SM80_MLA_ROW_GROUP; i += rows_at_once) {
        const int row = group * SM80_MLA_ROW_GROUP + i;
        if (row < block.rows)
            store_piece_row<C, value_columns<C>>(
                params, block, 0, row, warp_number() * warp_columns<C> + chunk * 4,
                load_columns(laid_place<C>(ring, i, chunk)), row_weight<C>(shared, row),
                shared.sink[row], unit);
    }
}

/* Stores the block's results, when all warps have multiplied by the last stage. */
template <flash_config_t C>
static __device__ __forceinline__ void
finish_block(const sm80_decode_params_t &params, const decode_block_t &block,
             const output_tile<C> &o, const softmax_state_t &state, uint32_t ring,
             mla_exchange<C> &shared, const score_unit_t &unit) {
    static_assert(C.n_warps * laid_bytes<C> <= all_rings_bytes<C>, "laid over the rings");
    leave_weights<C>(shared, state);
    if (threadIdx.x == 0)
        record_split(params, block);
    __syncthreads();
#pragma unroll 1
    for (int group = 0; group < row_groups<C>; ++group) {
#pragma unroll
        for (int m = 0; m < row_groups<C>; ++m) /* registers have no index at run time */
            if (m == group)
                lay_columns<C>(ring, o.o[m]);
        __syncwarp();
        store_columns<C>(params, block, ring, shared, group, unit);
        __syncwarp();
    }
}

#endif
