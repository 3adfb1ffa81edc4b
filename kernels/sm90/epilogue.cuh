/*
 * O and LSE of a tile, from registers to global memory. The quad that holds a row exchanges words
 * so that each thread has chunks of eight columns next to each other; they are stored element by
 * element where O is not aligned to them.
 */
#ifndef FLASH_KERNELS_SM90_EPILOGUE_CUH
#define FLASH_KERNELS_SM90_EPILOGUE_CUH

#include "sm90/consumer.cuh"

/* Divides by the sums; a row that saw no key becomes 0. */
template <flash_config_t C>
static __device__ __forceinline__ void normalize_output(output_tile<C> &o,
                                                        const softmax_state_t &state) {
    rescale_t inverse;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        inverse.factor[half] = state.sum[half] == 0.0f ? 0.0f : reciprocal_approx(state.sum[half]);
    rescale_output<C>(o, inverse);
}

/* Thread t of the quad gives word i to thread i, and gets word t of each. */
static __device__ __forceinline__ void transpose_in_quad(uint32_t (&w)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? other : w[i];
        w[i + 1] = odd ? w[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
        w[i] = upper ? other : w[i];
        w[i + 2] = upper ? w[i + 2] : other;
    }
}

/* O as it leaves: of both rows of the thread, chunks of eight columns, in every fourth place. */
template <flash_config_t C> struct output_chunks { uint4 chunk[2][C.d_head / 32]; };

/* Column of the thread's chunk i. */
static __device__ __forceinline__ int chunk_column(int i) {
    return (4 * i + threadIdx.x % 4) * SM90_CHUNK_ELEMENTS;
}

/* Rounds O. No branch: the next tile's QK^T is under way. */
template <flash_config_t C>
static __device__ __forceinline__ void round_output(output_chunks<C> &chunks,
                                                    const output_tile<C> &o) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < C.d_head / 32; ++i) {
            uint32_t w[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float *pair = &o.o[(4 * i + j) * 4 + 2 * half];
                w[j] = convert_pair<C.dtype>(pair[0], pair[1]);
            }
            transpose_in_quad(w);
            chunks.chunk[half][i] = uint4{w[0], w[1], w[2], w[3]};
        }
}

static __device__ __forceinline__ void store_elements(uint16_t *global, uint4 chunk, int count) {
    const uint32_t word[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < SM90_CHUNK_ELEMENTS; ++i)
        if (i < count)
            global[i] = (uint16_t)(word[i / 2] >> i % 2 * 16);
}

static __device__ __forceinline__ uint16_t *output_row(const flash_params_t &p,
                                                       const query_tile_t &t, int64_t row) {
    return (uint16_t *)p.o + t.batch_index * p.o_stride.batch + t.head * p.o_stride.head +
           row * p.o_stride.seq;
}

static __device__ __forceinline__ bool output_is_aligned(const flash_params_t &p,
                                                         const query_tile_t &t) {
    const uint64_t head_data = (uint64_t)output_row(p, t, 0);
    return ((head_data | (uint64_t)p.o_stride.seq * SM90_ELEMENT_BYTES) % SM90_CHUNK_BYTES) == 0;
}

template <flash_config_t C>
static __device__ __forceinline__ void store_row(uint16_t *row, int32_t columns,
                                                 const uint4 (&chunks)[C.d_head / 32]) {
    uint16_t *own = row + chunk_column(0);
#pragma unroll
    for (int i = 0; i < C.d_head / 32; ++i)
        if (chunk_column(i) < columns)
            *(uint4 *)(own + 32 * i) = chunks[i];
}

template <flash_config_t C>
static __device__ __forceinline__ void store_row_by_element(uint16_t *row, int32_t columns,
                                                            const uint4 (&chunks)[C.d_head / 32]) {
#pragma unroll
    for (int i = 0; i < C.d_head / 32; ++i)
        store_elements(row + chunk_column(i), chunks[i], columns - chunk_column(i));
}

template <flash_config_t C>
static __device__ __forceinline__ void store_output(const flash_params_t &p, const query_tile_t &t,
                                                    const output_chunks<C> &o) {
    const int32_t row = t.row_begin + tile_row(0);
    uint16_t *data = output_row(p, t, row);
    const int32_t columns[2] = {row < p.seqlen_q ? p.d_head : 0,
                                row + 8 < p.seqlen_q ? p.d_head : 0};
    if (output_is_aligned(p, t)) {
        store_row<C>(data, columns[0], o.chunk[0]);
        store_row<C>(data + 8 * p.o_stride.seq, columns[1], o.chunk[1]);
    } else {
        store_row_by_element<C>(data, columns[0], o.chunk[0]);
        store_row_by_element<C>(data + 8 * p.o_stride.seq, columns[1], o.chunk[1]);
    }
}

/* The rare tile: see hidden_values.cuh. The warp's rows, which it has just written. */
template <flash_config_t C>
static __device__ __forceinline__ void complete_output(const flash_params_t &p,
                                                       const query_tile_t &t) {
    const int32_t first = t.row_begin + (threadIdx.x / warp_threads - warpgroup_warps) * 16;
    __syncwarp();
#pragma unroll 1
    for (int32_t row = first; row < min(first + 16, p.seqlen_q); ++row)
        add_hidden_values<C>(p, t, row, output_row(p, t, row));
}

static __device__ __forceinline__ void store_lse(const flash_params_t &p, const query_tile_t &t,
                                                 const softmax_state_t &state,
                                                 const score_unit_t &unit) {
    if (!p.lse || threadIdx.x % 4 != 0)
        return;
    float *lse = p.lse + ((int64_t)t.batch_index * p.n_heads + t.head) * p.seqlen_q;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int32_t row = t.row_begin + tile_row(half);
        if (row < p.seqlen_q)
            lse[row] = row_lse(state, half, unit);
    }
}

#endif
