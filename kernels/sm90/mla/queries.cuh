/*
 * Both consumers together copy the rows of Q to shared memory, swizzled as TMA would write them.
 */
#ifndef FLASH_KERNELS_SM90_MLA_QUERIES_CUH
#define FLASH_KERNELS_SM90_MLA_QUERIES_CUH

#include "sm90/decode/queries.cuh"
#include "sm90/mla/state.cuh"

/* Threads that copy a row, each every so-manieth chunk of it. */
template <flash_config_t C> constexpr int row_threads = consumer_threads<C> / C.B_r;
template <flash_config_t C> constexpr int query_chunks = row_chunks<C> / row_threads<C>;

/* Copies the thread's part. Rows that do not exist, and columns past d_head, become zeros. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_mla_queries(const decode_params_t &params,
                                                        const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int thread = threadIdx.x - SM90_WARPGROUP_THREADS;
    const int row = thread / row_threads<C>, first = thread % row_threads<C>;
    const bool exists = row < block.rows;
    const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
    const int64_t offset = row_offset(p, p.q_stride, block, block.first_head_kv, at);
    const uint4 *data = (const uint4 *)((const char *)p.q + offset * element_bytes<C>);
    uint4 chunks[query_chunks<C>];
#pragma unroll
    for (int i = 0; i < query_chunks<C>; ++i) {
        const int chunk = first + i * row_threads<C>;
        const bool has_column = chunk * chunk_elements<C> < p.d_head;
        chunks[i] = exists && has_column ? __ldg(data + chunk) : uint4{0, 0, 0, 0};
    }
    named_barrier_arrive(MLA_QUERIES_BARRIER, mla_query_threads<C>);
#pragma unroll
    for (int i = 0; i < query_chunks<C>; ++i)
        shared_store(query_chunk_place<C>(row, first + i * row_threads<C>), chunks[i]);
    async_proxy_fence();
    meet_consumers<C>();
}

#endif
