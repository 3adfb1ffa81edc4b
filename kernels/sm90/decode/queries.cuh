/*
 * Q of a block's rows, which are packed: a row is a query and a query head of the group. Each
 * consumer copies its own 64 rows to shared memory, swizzled as TMA would write them.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_QUERIES_CUH
#define FLASH_KERNELS_SM90_DECODE_QUERIES_CUH

#include "common/decode/rows.cuh"
#include "sm90/block_state.cuh"
#include "sm90/decode/derive.cuh"
#include "sm90/fragments.cuh"

constexpr int panel_chunks = SM90_PANEL_BYTES / SM90_CHUNK_BYTES;

template <flash_config_t C> constexpr int row_chunks = panels<C> *panel_chunks;

/* A thread of a consumer copies so many chunks of Q. */
template <flash_config_t C>
constexpr int own_query_chunks = SM90_WARPGROUP_ROWS *row_chunks<C> / SM90_WARPGROUP_THREADS;

/* This names a chunk of a tile: by its row, and by its number in the row. */
typedef struct query_chunk {
    int row;
    int number;
} query_chunk_t;

template <flash_config_t C>
static __device__ __forceinline__ query_chunk_t own_query_chunk(int number, int i) {
    const int at = i * SM90_WARPGROUP_THREADS + threadIdx.x % SM90_WARPGROUP_THREADS;
    return {number * SM90_WARPGROUP_ROWS + at / row_chunks<C>, at % row_chunks<C>};
}

/* Returns a chunk of Q. Rows that do not exist, and columns past d_head, are zeros. */
template <flash_config_t C>
static __device__ __forceinline__ uint4 fetch_query_chunk(const decode_params_t &params,
                                                          const decode_block_t &block,
                                                          const query_chunk_t &chunk) {
    const flash_params_t &p = params.attention;
    const int column = chunk.number * chunk_elements<C>;
    if (chunk.row >= block.rows || column >= p.d_head)
        return uint4{0, 0, 0, 0};
    const head_row_t row = find_row(params, block.row_begin + chunk.row);
    const int64_t at = row_offset(p, p.q_stride, block, block.first_head_kv, row) + column;
    return __ldg((const uint4 *)((const char *)p.q + at * element_bytes<C>));
}

template <flash_config_t C>
static __device__ __forceinline__ uint32_t query_chunk_place(const query_chunk_t &chunk) {
    const int swizzled = chunk.number % panel_chunks ^ chunk.row % panel_chunks;
    return q_tile<C>(0) + chunk.number / panel_chunks * q_panel_bytes<C> +
           chunk.row * SM90_PANEL_BYTES + swizzled * SM90_CHUNK_BYTES;
}

/* Copies the rows of consumer `number`. Its threads meet at a named barrier before they multiply
 * by what the others have copied. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_queries(const decode_params_t &params,
                                                    const decode_block_t &block, int number) {
    uint4 chunks[own_query_chunks<C>];
#pragma unroll
    for (int i = 0; i < own_query_chunks<C>; ++i)
        chunks[i] = fetch_query_chunk<C>(params, block, own_query_chunk<C>(number, i));
#pragma unroll
    for (int i = 0; i < own_query_chunks<C>; ++i)
        shared_store(query_chunk_place<C>(own_query_chunk<C>(number, i)), chunks[i]);
    async_proxy_fence();
}

#endif
