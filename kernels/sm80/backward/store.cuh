/*
 * Gradients go through shared memory, in fp32, in the place of the tile's rows, which are no longer
 * needed. Then each thread rounds 8 columns of a row at a time to the type of the gradient, or adds
 * them to what is there: as whole 16 bytes, or element by element where these do not lie at aligned
 * addresses.
 *
 * Chunk c (4 columns) of row r lies at chunk c ^ (r % 8), so that the pairs of columns that a warp
 * stores at a time lie in different banks.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_STORE_CUH
#define FLASH_KERNELS_SM80_BACKWARD_STORE_CUH

#include "common/dtype.cuh"
#include "common/ptx/convert.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/tile.cuh"

enum { FLOATS_OF_CHUNK = 4, COLUMNS_OF_THREAD = 8 };

template <flash_config_t C>
static __device__ __forceinline__ uint32_t staged_chunk(uint32_t shared, int row, int chunk) {
    static_assert(tile_rows<C> * C.d_head * sizeof(float) <= 2 * tile_bytes<C>,
                  "a gradient fits where the tile's rows were");
    return shared + row * C.d_head * (int)sizeof(float) + (chunk ^ (row & 7)) * chunk_bytes;
}

/* Stores a warp's part of the gradient, multiplied by a factor, in shared memory. */
template <flash_config_t C>
static __device__ __forceinline__ void stage_gradient(uint32_t shared, const gradient_rows<C> &x,
                                                      float factor) {
    const int first = share_of_warp<C>() * warp_columns<C> + column_of_thread();
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < gradient_tiles<C>; ++n) {
                const int column = first + n * 8;
                const uint32_t chunk =
                    staged_chunk<C>(shared, row_of_thread<C>(m, half), column / FLOATS_OF_CHUNK);
                shared_store(
                    chunk + column % FLOATS_OF_CHUNK * (int)sizeof(float),
                    float2{x.g[m][n][2 * half] * factor, x.g[m][n][2 * half + 1] * factor});
            }
}

/* Says whether rows of the gradient consist of whole 16 bytes at aligned addresses. */
static __device__ __forceinline__ bool has_aligned_chunks(const flash_gradient_t &gradient) {
    const uint64_t size = (uint64_t)dtype_size(gradient.dtype);
    const flash_strides_t &s = gradient.stride;
    const uint64_t strides = (uint64_t)s.batch | (uint64_t)s.seq | (uint64_t)s.head;
    return ((uint64_t)gradient.data | strides * size) % chunk_bytes == 0;
}

/* Stores columns of a row of fp32. */
static __device__ __forceinline__ void store_floats(const flash_gradient_t &gradient, int64_t at,
                                                    int32_t columns, bool is_aligned,
                                                    const float (&x)[COLUMNS_OF_THREAD]) {
    float *to = static_cast<float *>(gradient.data) + at;
    if (is_aligned && columns >= COLUMNS_OF_THREAD && !gradient.adds) {
        reinterpret_cast<float4 *>(to)[0] = float4{x[0], x[1], x[2], x[3]};
        reinterpret_cast<float4 *>(to)[1] = float4{x[4], x[5], x[6], x[7]};
        return;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS_OF_THREAD; ++i)
        if (i < columns)
            to[i] = gradient.adds ? to[i] + x[i] : x[i];
}

/* Stores columns of a row of 16 bits. */
template <int DTYPE>
static __device__ __forceinline__ void store_halves(const flash_gradient_t &gradient, int64_t at,
                                                    int32_t columns, bool is_aligned,
                                                    const float (&x)[COLUMNS_OF_THREAD]) {
    if (is_aligned && columns >= COLUMNS_OF_THREAD) {
        *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(gradient.data) + at) =
            uint4{convert_pair<DTYPE>(x[0], x[1]), convert_pair<DTYPE>(x[2], x[3]),
                  convert_pair<DTYPE>(x[4], x[5]), convert_pair<DTYPE>(x[6], x[7])};
        return;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS_OF_THREAD; ++i)
        if (i < columns)
            dtype_store<DTYPE>(gradient.data, at + i, x[i]);
}

/* Stores the tile's rows from shared memory. first_token: of row 0, in the batch entry. columns:
 * those of the tensor. */
template <flash_config_t C>
static __device__ __forceinline__ void store_staged(const flash_gradient_t &gradient,
                                                    uint32_t shared, const gradient_tile_t &tile,
                                                    int64_t first_token, int32_t columns) {
    constexpr int threads_of_row = C.d_head / COLUMNS_OF_THREAD;
    const bool is_aligned = has_aligned_chunks(gradient);
    const int64_t head =
        tile.batch_index * gradient.stride.batch + tile.head * gradient.stride.head;
#pragma unroll 1
    for (int i = threadIdx.x; i < tile.rows * threads_of_row; i += block_threads<C>) {
        const int row = i / threads_of_row, column = i % threads_of_row * COLUMNS_OF_THREAD;
        const int64_t at = head + (first_token + row) * gradient.stride.seq + column;
        float x[COLUMNS_OF_THREAD];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint4 chunk =
                shared_load(staged_chunk<C>(shared, row, column / FLOATS_OF_CHUNK + j));
            x[4 * j] = __uint_as_float(chunk.x), x[4 * j + 1] = __uint_as_float(chunk.y);
            x[4 * j + 2] = __uint_as_float(chunk.z), x[4 * j + 3] = __uint_as_float(chunk.w);
        }
        if (gradient.dtype == FLASH_DTYPE_FP32)
            store_floats(gradient, at, columns - column, is_aligned, x);
        else
            store_halves<operand_dtype<C>>(gradient, at, columns - column, is_aligned, x);
    }
}

/* Returns what products of dS are multiplied by: dropout's scale is not yet in dS (scores.cuh). */
template <flash_config_t C>
static __device__ __forceinline__ float scale_of_ds(const flash_params_t &p) {
    return has_dropout<C> ? p.softmax_scale * p.dropout.scale : p.softmax_scale;
}

/* Stores the tile's rows of a gradient, if it is wanted. */
template <flash_config_t C>
static __device__ __forceinline__ void
store_gradient(const flash_gradient_t &gradient, uint32_t shared, const gradient_rows<C> &x,
               const gradient_tile_t &tile, int64_t first_token, int32_t columns, float factor) {
    if (gradient.data == nullptr)
        return;
    __syncthreads();
    stage_gradient<C>(shared, x, factor);
    __syncthreads();
    store_staged<C>(gradient, shared, tile, first_token, columns);
}

#endif
