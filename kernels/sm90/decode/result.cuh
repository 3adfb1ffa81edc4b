/*
 * At the end of a piece its O and LSE are stored, or a partial result for the kernel that merges
 * pieces.
 *
 * Each warp lays some of the columns of its sixteen rows over its rows of Q, in fp32, stores them
 * row by row, and then the next. Stores of O from registers would be many more instructions, each
 * of which is used once and comes from memory. Partial results of rows of e4m3 leave from registers
 * all the same: four lanes store 32 bytes of a row, by one instruction for each eight columns.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_RESULT_CUH
#define FLASH_KERNELS_SM90_DECODE_RESULT_CUH

#include "common/decode/store.cuh"
#include "sm90/decode/consumer.cuh"

/* Columns that lie over Q at a time, of larger elements; 16-byte chunks of them per row; rows that
 * a warp stores at a time. */
template <flash_config_t C>
constexpr int laid_columns = C.d_head *element_bytes<C> / (int)sizeof(float);
template <flash_config_t C> constexpr int laid_chunks = laid_columns<C> / 4;
template <flash_config_t C> constexpr int rows_at_once = warp_threads / laid_chunks<C>;

/* Returns the address of a chunk of four columns of fp32, in one of the warp's rows. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t laid_place(int row, int chunk) {
    return q_tile<C>(0) + chunk / 8 * q_panel_bytes<C> + (warp_row() + row) * SM90_PANEL_BYTES +
           (chunk % 8 ^ row % 8) * SM90_CHUNK_BYTES;
}

/* Lays columns of the warp's rows over Q: part `part` of all. */
template <flash_config_t C>
static __device__ __forceinline__ void lay_columns(const output_tile<C> &o, int part) {
#pragma unroll
    for (int i = 0; i < laid_columns<C> / 8; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float *pair = &o.o[(part * laid_columns<C> / 8 + i) * 4 + 2 * half];
            const int row = half * 8 + threadIdx.x % warp_threads / 4;
            const uint32_t address = laid_place<C>(row, 2 * i + tile_column() / 4);
            shared_store(address + tile_column() % 4 * (int)sizeof(float),
                         float2{pair[0], pair[1]});
        }
}

static __device__ __forceinline__ float4 load_columns(uint32_t address) {
    const uint4 bits = shared_load(address);
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
            __uint_as_float(bits.w)};
}

/* Returns the weight of one of the warp's rows, from a thread that has it. */
static __device__ __forceinline__ decode_weight_t weight_of_row(const softmax_state_t &softmax,
                                                                int row) {
    const int thread = row % 8 * 4;
    const float max[2] = {__shfl_sync(0xffffffffu, softmax.max[0], thread),
                          __shfl_sync(0xffffffffu, softmax.max[1], thread)};
    const float sum[2] = {__shfl_sync(0xffffffffu, softmax.sum[0], thread),
                          __shfl_sync(0xffffffffu, softmax.sum[1], thread)};
    return row < 8 ? decode_weight_t{max[0], sum[0]} : decode_weight_t{max[1], sum[1]};
}

/* Returns the sink of one of the warp's rows, from a thread that has it. */
template <flash_config_t C>
static __device__ __forceinline__ float sink_of_row(const row_state<C> &rows, int row) {
    return __shfl_sync(0xffffffffu, rows.sink, 2 * row);
}

/* Stores four columns of a row of the tile. */
template <flash_config_t C>
static __device__ __forceinline__ void
finish_columns(const decode_params_t &params, const decode_block_t &block, int row, int column,
               float4 sum, const decode_weight_t &weight, float sink, const score_unit_t &unit) {
    if (row >= block.rows)
        return;
    if (is_whole(block.piece)) {
        const head_row_t at = find_row(params, block.row_begin + row);
        const output_row_t to = find_output_row(params, block, block.first_head_kv, at);
        store_row(params, to, column, sum, weight, sink, unit);
        return;
    }
    const int64_t partial = find_slot<C>(params) * C.B_r + row;
    *(float4 *)(params.partial_o + partial * d_head_v<C> + column) = sum;
    if (column == 0)
        params.partial_weights[partial] = weight;
}

/* Stores the columns that the warp has laid over Q: part `part` of all. */
template <flash_config_t C>
static __device__ __forceinline__ void
store_columns(const decode_params_t &params, const decode_block_t &block, const row_state<C> &rows,
              int part, const score_unit_t &unit) {
    const int lane = threadIdx.x % warp_threads, chunk = lane % laid_chunks<C>;
    const int column = part * laid_columns<C> + chunk * 4;
#pragma unroll 1
    for (int row = lane / laid_chunks<C>; row < 16; row += rows_at_once<C>)
        finish_columns<C>(params, block, warp_row() + row, column,
                          load_columns(laid_place<C>(row, chunk)), weight_of_row(rows.softmax, row),
                          sink_of_row<C>(rows, row), unit);
}

/* Says whether partial results leave straight from registers. Some rows of 16-bit types would spill
 * for it. */
template <flash_config_t C> constexpr bool stores_partials_directly = has_scales<C>;

/* Stores the partial result of the thread's two rows. Those past the tile's end have room too, and
 * nobody reads them. */
template <flash_config_t C>
static __device__ __forceinline__ void store_partial_rows(const decode_params_t &params,
                                                          const row_state<C> &rows) {
    const int64_t first = find_slot<C>(params) * C.B_r + tile_row(0);
    float *const o = params.partial_o + first * d_head_v<C> + tile_column();
#pragma unroll
    for (int i = 0; i < output_registers<C>; i += 2)
        *(float2 *)(o + i / 2 % 2 * 8 * d_head_v<C> + i / 4 * 8) = {rows.o.o[i], rows.o.o[i + 1]};
    if (threadIdx.x % 4 == 0)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            params.partial_weights[first + 8 * half] = {rows.softmax.max[half],
                                                        rows.softmax.sum[half]};
}

template <flash_config_t C>
static __device__ __forceinline__ void finish_rows(const decode_params_t &params,
                                                   const decode_block_t &block, row_state<C> &rows,
                                                   const score_unit_t &unit) {
    if (stores_partials_directly<C> && !is_whole(block.piece)) {
        store_partial_rows<C>(params, rows);
        return;
    }
    named_barrier_sync(CONSUMER_BARRIER + rows.number, SM90_WARPGROUP_THREADS);
#pragma unroll
    for (int part = 0; part < C.d_head / laid_columns<C>; ++part) {
        lay_columns<C>(rows.o, part);
        __syncwarp();
        store_columns<C>(params, block, rows, part, unit);
        __syncwarp();
    }
}

#endif
