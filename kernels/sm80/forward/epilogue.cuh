/*
 * The epilogue writes O and LSE of a tile to global memory. O of 16 bits first goes to shared
 * memory, over the warp's rows of Q, so that each row is stored in whole, adjacent chunks, or by
 * element if O is not aligned to chunks. O of fp32 is stored from registers: the column pairs of a
 * quad are together a sector of 32 bytes.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_EPILOGUE_CUH
#define FLASH_KERNELS_SM80_FORWARD_EPILOGUE_CUH

#include "common/sink.h"
#include "sm80/forward/mainloop.cuh"

/* Returns the scale of V of e4m3, or of weights that dropout lets stay; 1 in other kernels. */
template <flash_config_t C>
static __device__ __forceinline__ float output_scale(const flash_params_t &p,
                                                     const query_tile_t &tile) {
    if constexpr (has_dropout<C>)
        return p.dropout.scale;
    return has_scales<C> ? flash_scale_at(&p.v_scale, tile.batch_index, tile.head / p.group) : 1.0f;
}

/* Divides O by the sum with the sink and multiplies it by V's scale. A row that saw no key becomes
 * 0, whatever the sink is. */
template <flash_config_t C>
static __device__ __forceinline__ void
normalize_output(output_tile<C> &o, const softmax_state<C> &state, const score_unit_t &unit,
                 float sink, float v_scale) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = sum_with_sink<C>(state, m, half, unit, sink);
            const bool saw_none = state.sum[m][half] == 0.0f;
            scale_output_row<C>(o, m, half, saw_none ? 0.0f : reciprocal_approx(sum) * v_scale);
        }
}

template <flash_config_t C, int DTYPE>
static __device__ __forceinline__ void output_to_shared(const output_tile<C> &o, uint32_t shared) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < head_tiles<C>; ++n)
                shared_store(shared + chunk_offset<C>(tile_row<C>(m, half), n) +
                                 tile_column() * element_bytes<C>,
                             convert_pair<DTYPE>(o.o[m][n][2 * half], o.o[m][n][2 * half + 1]));
}

template <flash_config_t C>
static __device__ __forceinline__ void store_elements(char *global, uint4 chunk, int columns) {
    const uint32_t word[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < chunk_elements<C>; ++i)
        if (i < columns)
            ((element_bits<C> *)global)[i] =
                (element_bits<C>)(word[i / word_elements<C>] >>
                                  i % word_elements<C> * element_bytes<C> * 8);
}

/* Stores rows of whole, aligned chunks. A warp stores a panel of several rows at a time. */
template <flash_config_t C>
static __device__ __forceinline__ void store_rows(char *global, int64_t row_stride, int32_t rows,
                                                  int32_t d_head_v, uint32_t shared) {
    constexpr int rows_at_once = SM80_WARP_THREADS / panel_chunks<C>;
    const int first_row = threadIdx.x / SM80_WARP_THREADS * warp_rows<C> +
                          threadIdx.x % SM80_WARP_THREADS / panel_chunks<C>;
    const int first_chunk = threadIdx.x % panel_chunks<C>;
#pragma unroll
    for (int i = 0; i < warp_rows<C>; i += rows_at_once)
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel) {
            const int row = first_row + i;
            const int chunk = panel * panel_chunks<C> + first_chunk;
            if (row < rows && chunk * chunk_elements<C> < d_head_v)
                *(uint4 *)(global + row * row_stride + chunk * SM80_CHUNK_BYTES) =
                    shared_load(shared + chunk_offset<C>(row, chunk));
        }
}

template <flash_config_t C>
static __device__ __forceinline__ void store_rows_by_element(char *global, int64_t row_stride,
                                                             int32_t rows, int32_t d_head_v,
                                                             uint32_t shared) {
    const int first_row = threadIdx.x / SM80_WARP_THREADS * warp_rows<C>;
#pragma unroll 1
    for (int i = threadIdx.x % SM80_WARP_THREADS; i < warp_rows<C> * row_chunks<C>;
         i += SM80_WARP_THREADS) {
        const int row = first_row + i / row_chunks<C>;
        const int chunk = i % row_chunks<C>;
        if (row < rows)
            store_elements<C>(global + row * row_stride + chunk * SM80_CHUNK_BYTES,
                              shared_load(shared + chunk_offset<C>(row, chunk)),
                              d_head_v - chunk * chunk_elements<C>);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void store_output(const flash_params_t &params,
                                                    const query_tile_t &tile, uint32_t shared) {
    const int64_t row_stride = params.o_stride.seq * element_bytes<C>;
    char *head_data = (char *)params.o + (tile.batch_index * params.o_stride.batch +
                                          tile.head * params.o_stride.head) *
                                             element_bytes<C>;
    char *global = head_data + (tile.sequence.q_begin + tile.row_begin) * row_stride;
    if (chunks_aligned<C>(head_data, row_stride, params.d_head_v))
        store_rows<C>(global, row_stride, tile.rows, params.d_head_v, shared);
    else
        store_rows_by_element<C>(global, row_stride, tile.rows, params.d_head_v, shared);
}

/* ---- O of fp32 ---- */

/* Returns the first row of the tile. */
static __device__ __forceinline__ float *fp32_output(const flash_params_t &params,
                                                     const query_tile_t &tile) {
    return (float *)params.o + tile.batch_index * params.o_stride.batch +
           tile.head * params.o_stride.head +
           (tile.sequence.q_begin + tile.row_begin) * params.o_stride.seq;
}

/* Stores two columns of a row if they exist. With `pairs` both are aligned, and both or none
 * exist. */
static __device__ __forceinline__ void store_fp32_columns(float *to, float2 value, int32_t columns,
                                                          bool pairs) {
    if (pairs && columns > 0)
        *(float2 *)to = value;
    if (!pairs && columns > 0)
        to[0] = value.x;
    if (!pairs && columns > 1)
        to[1] = value.y;
}

template <flash_config_t C>
static __device__ __forceinline__ void
store_fp32_output(const flash_params_t &params, const query_tile_t &tile, const output_tile<C> &o) {
    float *const data = fp32_output(params, tile);
    const int64_t stride = params.o_stride.seq;
    const bool pairs = ((uint64_t)data | (uint64_t)stride * sizeof(float) |
                        (uint64_t)params.d_head_v * sizeof(float)) %
                           sizeof(float2) ==
                       0;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile_row<C>(m, half);
            const int32_t columns = row < tile.rows ? params.d_head_v : 0;
#pragma unroll
            for (int n = 0; n < head_tiles<C>; ++n)
                store_fp32_columns(data + row * stride + 8 * n + tile_column(),
                                   float2{o.o[m][n][2 * half], o.o[m][n][2 * half + 1]},
                                   columns - 8 * n - tile_column(), pairs);
        }
}

template <flash_config_t C>
static __device__ __forceinline__ void
store_lse(const flash_params_t &params, const query_tile_t &tile, const softmax_state<C> &state,
          const score_unit_t &unit) {
    if (!params.lse || threadIdx.x % 4 != 0)
        return;
    float *lse = params.lse + flash_lse_index(&params, &tile.sequence, tile.batch_index, tile.head,
                                              tile.row_begin);
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile_row<C>(m, half);
            if (row < tile.rows)
                lse[row * params.lse_stride.seq] = row_lse<C>(state, m, half, unit);
        }
}

template <flash_config_t C>
static __device__ __forceinline__ bool is_v_sanitised(const query_tile_t &tile) {
    return has_mask<C> && tile.block_begin < tile.block_end && block_state().v_sanitised;
}

template <flash_config_t C>
static __device__ __forceinline__ void store_tile(const flash_params_t &params,
                                                  const query_tile_t &tile, warp_state<C> &state,
                                                  uint32_t shared) {
    const float sink = flash_sink_at(params.sinks, tile.head);
    const score_unit_t unit = softmax_unit<C>(make_score_unit<C>(params));
    finish_sums<C>(state.softmax);
    store_lse<C>(params, tile, state.softmax, unit);
    normalize_output<C>(state.o, state.softmax, unit, sink, output_scale<C>(params, tile));
    if (params.o_dtype == FLASH_DTYPE_FP32) {
        store_fp32_output<C>(params, tile, state.o);
        __syncwarp();
        if (is_v_sanitised<C>(tile))
            add_non_finite_v_to_fp32<C>(params, tile, fp32_output(params, tile));
        return;
    }
    if (has_other_q_and_o<C> && params.o_dtype == FLASH_DTYPE_BF16)
        output_to_shared<C, FLASH_DTYPE_BF16>(state.o, shared);
    else
        output_to_shared<C, operand_dtype<C>>(state.o, shared);
    __syncwarp();
    if (is_v_sanitised<C>(tile)) {
        add_non_finite_v<C>(params, tile, shared);
        __syncwarp();
    }
    store_output<C>(params, tile, shared);
}

#endif
