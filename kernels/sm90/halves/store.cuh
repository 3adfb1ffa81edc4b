/*
 * Where a block computes several tiles, each consumer stores its half of the columns of O from its
 * registers, so that Q and K of the next tile are loaded meanwhile. Neighbouring lanes exchange
 * halves of eight columns, and store four columns at a time.
 *
 *     lane       | 0    | 1    | 2    | 3    |
 *     has        | 0, 1 | 2, 3 | 4, 5 | 6, 7 | of columns 0 ... 7, and of 8 ... 15
 *     stores     | 0-3  | 8-11 | 4-7  | 12-15 |
 */
#ifndef FLASH_KERNELS_SM90_HALVES_STORE_CUH
#define FLASH_KERNELS_SM90_HALVES_STORE_CUH

#include "common/decode/store.cuh"
#include "sm90/halves/consumer.cuh"

/* This says where a thread stores its columns of one of its rows. */
typedef struct stored_row {
    char *to;     /* the thread's first column */
    int32_t left; /* columns from that one on, no more than exist; negative: the row does not */
} stored_row_t;

/* Returns the index of a row among the partial results. */
template <flash_config_t C>
static __device__ __forceinline__ int64_t partial_row(const decode_params_t &params,
                                                      const decode_block_t &block, int row) {
    const int64_t tile = (int64_t)block.piece_index * params.row_tiles + block.row_begin / C.B_r;
    const int64_t slot = tile * params.head_blocks + block.first_head_kv / params.heads_per_block;
    return slot * C.B_r + row;
}

template <flash_config_t C>
static __device__ __forceinline__ stored_row_t find_stored_row(const decode_params_t &params,
                                                               const decode_block_t &block,
                                                               int number, int row) {
    const flash_params_t &p = params.attention;
    const int lane = (int)lane_index();
    const int first = number * half_columns<C> + lane % 2 * 8 + lane % 4 / 2 * 4;
    const bool exists = row < block.rows;
    if (!is_whole(block.piece))
        return {
            (char *)(params.partial_o + partial_row<C>(params, block, row) * d_head_v<C> + first),
            exists ? d_head_v<C> - first : -1};
    const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
    const int64_t offset = row_offset(p, p.o_stride, block, block.first_head_kv, at) + first;
    return {(char *)p.o + offset * dtype_size(p.o_dtype), exists ? p.d_head_v - first : -1};
}

static __device__ __forceinline__ float exchange_with_neighbour(float x) {
    return __shfl_xor_sync(0xffffffffu, x, 1);
}

template <flash_config_t C>
static __device__ __forceinline__ void store_wide_row(const float (&o)[half_registers<C>], int half,
                                                      float factor, const stored_row_t &row) {
    const bool odd = lane_index() % 2 != 0;
#pragma unroll
    for (int i = 0; i < half_columns<C> / 16; ++i) {
        const float *a = &o[8 * i + 2 * half], *b = a + 4;
        const float2 left = {a[0] * factor, a[1] * factor}, right = {b[0] * factor, b[1] * factor};
        const float2 other = {exchange_with_neighbour(odd ? left.x : right.x),
                              exchange_with_neighbour(odd ? left.y : right.y)};
        const float4 four = odd ? float4{other.x, other.y, right.x, right.y}
                                : float4{left.x, left.y, other.x, other.y};
        if (16 * i < row.left)
            *(float4 *)(row.to + 16 * i * (int)sizeof(float)) = four;
    }
}

static __device__ __forceinline__ uint32_t round_pair(float low, float high, bool is_bf16) {
    return is_bf16 ? convert_pair<FLASH_DTYPE_BF16>(low, high)
                   : convert_pair<FLASH_DTYPE_FP16>(low, high);
}

template <flash_config_t C>
static __device__ __forceinline__ void store_narrow_row(const float (&o)[half_registers<C>],
                                                        int half, float factor,
                                                        const stored_row_t &row, bool is_bf16) {
    const bool odd = lane_index() % 2 != 0;
#pragma unroll
    for (int i = 0; i < half_columns<C> / 16; ++i) {
        const float *a = &o[8 * i + 2 * half], *b = a + 4;
        const uint32_t left = round_pair(a[0] * factor, a[1] * factor, is_bf16);
        const uint32_t right = round_pair(b[0] * factor, b[1] * factor, is_bf16);
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? left : right, 1);
        if (16 * i < row.left)
            *(uint2 *)(row.to + 16 * i * (int)sizeof(uint16_t)) =
                odd ? uint2{other, right} : uint2{left, other};
    }
}

/* Stores the consumer's half, each row times a factor. O is aligned as four elements of it. */
template <flash_config_t C>
static __device__ __forceinline__ void
store_from_registers(const decode_params_t &params, const decode_block_t &block,
                     const float (&o)[half_registers<C>], int number, const float (&factors)[2]) {
    const int32_t dtype = params.attention.o_dtype;
    const bool is_wide = !is_whole(block.piece) || dtype == FLASH_DTYPE_FP32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const stored_row_t row = find_stored_row<C>(params, block, number, group_row() + 8 * half);
        if (is_wide)
            store_wide_row<C>(o, half, factors[half], row);
        else
            store_narrow_row<C>(o, half, factors[half], row, dtype == FLASH_DTYPE_BF16);
    }
}

/* Stores the LSE of a thread's row, or its weight in the partial result, in one thread of each row.
 * Returns the factor by which O is multiplied. */
template <flash_config_t C>
static __device__ __forceinline__ float
store_weight(const decode_params_t &params, const decode_block_t &block, int row,
             const decode_weight_t &weight, const score_unit_t &unit) {
    const bool stores = row < block.rows && lane_index() % 4 == 0;
    if (!is_whole(block.piece)) {
        if (stores)
            params.partial_weights[partial_row<C>(params, block, row)] = weight;
        return 1.0f;
    }
    const head_row_t at = find_row(params, block.row_begin + min(row, block.rows - 1));
    const output_row_t to = find_output_row(params, block, block.first_head_kv, at);
    if (stores)
        store_lse(params, to, weight, unit);
    return output_factor(to, weight, load_sink(params.attention, block.first_head_kv, at), unit);
}

/* Hands the factors of O to consumer 1, as hand_on() hands P. */
template <flash_config_t C>
static __device__ __forceinline__ void hand_on_factors(half_state<C> &half,
                                                       const float (&factors)[2]) {
    halves_state_t &state = halves_state<C>();
    mbarrier_wait(shared_address(&state.p_taken), half.turn ^ 1);
    shared_store(shared_address(&exchange<C>().factors[threadIdx.x % SM90_WARPGROUP_THREADS]),
                 float2{factors[0], factors[1]});
    mbarrier_arrive(shared_address(&state.p_ready));
    half.turn ^= 1;
}

template <flash_config_t C>
static __device__ __forceinline__ void take_factors(half_state<C> &half, float (&factors)[2]) {
    halves_state_t &state = halves_state<C>();
    mbarrier_wait(shared_address(&state.p_ready), half.turn);
    const float2 taken = exchange<C>().factors[threadIdx.x % SM90_WARPGROUP_THREADS];
    mbarrier_arrive(shared_address(&state.p_taken));
    half.turn ^= 1;
    factors[0] = taken.x;
    factors[1] = taken.y;
}

#endif
