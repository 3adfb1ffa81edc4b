/*
 * The consumers copy the rows of Q to shared memory, swizzled as TMA would write them: in
 * SM90_DECODE each its own 64.
 * Rows are packed: a row is a query and a query head of the group.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_QUERIES_CUH
#define FLASH_KERNELS_SM90_DECODE_QUERIES_CUH

#include "common/decode/rows.cuh"
#include "sm90/decode/barriers.cuh"
#include "sm90/decode/derive.cuh"
#include "sm90/fragments.cuh"

constexpr int panel_chunks = SM90_PANEL_BYTES / SM90_CHUNK_BYTES;

template <flash_config_t C> constexpr int row_chunks = q_panels<C> *panel_chunks;

/* So many threads copy a row of Q, each every so-manieth chunk of it. */
template <flash_config_t C> constexpr int row_threads = consumer_threads<C> / C.B_r;
template <flash_config_t C> constexpr int thread_query_chunks = row_chunks<C> / row_threads<C>;

/* Returns the thread's number among those of the consumers, and the row that it copies. */
static __device__ __forceinline__ int consumer_thread() {
    return (int)threadIdx.x - SM90_WARPGROUP_THREADS;
}

template <flash_config_t C> static __device__ __forceinline__ int copied_row() {
    return consumer_thread() / row_threads<C>;
}

/* Returns the place of a chunk of a row of the tile. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t query_chunk_place(int row, int chunk) {
    const int swizzled = chunk % panel_chunks ^ row % panel_chunks;
    return q_tile<C>(0) + chunk / panel_chunks * q_panel_bytes<C> + row * SM90_PANEL_BYTES +
           swizzled * SM90_CHUNK_BYTES;
}

/* These are the thread's chunks of its row. */
template <flash_config_t C> struct query_chunks { uint4 of[thread_query_chunks<C>]; };

/* Fetches the thread's part. Rows that do not exist, and columns past d_head, become zeros.
 * ANNOUNCES: to the warps that load keys, which wait for that. */
template <flash_config_t C, bool ANNOUNCES = true>
static __device__ __forceinline__ query_chunks<C> fetch_queries(const decode_params_t &params,
                                                                const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int row = copied_row<C>(), first = consumer_thread() % row_threads<C>;
    const bool exists = row < block.rows;
    const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
    const int64_t offset = row_offset(p, p.q_stride, block, block.first_head_kv, at);
    const uint4 *data = (const uint4 *)((const char *)p.q + offset * element_bytes<C>);
    query_chunks<C> chunks;
#pragma unroll
    for (int i = 0; i < thread_query_chunks<C>; ++i) {
        const int chunk = first + i * row_threads<C>;
        const bool has_column = chunk * chunk_elements<C> < p.d_head;
        chunks.of[i] = exists && has_column ? __ldg(data + chunk) : uint4{0, 0, 0, 0};
    }
    if constexpr (ANNOUNCES)
        announce_query_loads<C>();
    return chunks;
}

/* Stores the thread's part. Threads meet at a named barrier before they multiply by what others
 * have stored. */
template <flash_config_t C>
static __device__ __forceinline__ void store_queries(const query_chunks<C> &chunks) {
    const int row = copied_row<C>(), first = consumer_thread() % row_threads<C>;
#pragma unroll
    for (int i = 0; i < thread_query_chunks<C>; ++i)
        shared_store(query_chunk_place<C>(row, first + i * row_threads<C>), chunks.of[i]);
    async_proxy_fence();
}

template <flash_config_t C>
static __device__ __forceinline__ void copy_queries(const decode_params_t &params,
                                                    const decode_block_t &block) {
    store_queries<C>(fetch_queries<C>(params, block));
}

/* Loads the sink of the row of which the thread copies a part. */
template <flash_config_t C>
static __device__ __forceinline__ float load_row_sink(const decode_params_t &params,
                                                      const decode_block_t &block) {
    const int row = min(copied_row<C>(), block.rows - 1);
    return load_sink(params.attention, block.first_head_kv,
                     find_row(params, block.row_begin + row));
}

#endif
