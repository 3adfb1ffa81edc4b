/*
 * Blocks of rows are copied from global to shared memory by cp.async. Rows past the end of the
 * sequence and columns past d_head (of V and dO: d_head_v) become zeros; memory there is never
 * read.
 *
 * A thread copies chunk (threadIdx.x % panel_chunks) of each panel, of every pass_rows-th row.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_LOAD_CUH
#define FLASH_KERNELS_SM80_BACKWARD_LOAD_CUH

#include "common/ptx/async_copy.cuh"
#include "common/ptx/opaque.cuh"
#include "sm80/backward/layout.cuh"
#include "sm80/backward/tile.cuh"

/* Rows of one head of one sequence in global memory. */
typedef struct row_source {
    const char *pointer;
    int64_t row_stride; /* bytes */
    int32_t columns;    /* that exist */
} row_source_t;

/* Returns the rows from `token` of a batch entry on. */
static __device__ __forceinline__ row_source_t make_source(const void *data,
                                                           const flash_strides_t &stride,
                                                           int32_t columns, int64_t batch_index,
                                                           int64_t head, int64_t token) {
    const int64_t at = batch_index * stride.batch + head * stride.head + token * stride.seq;
    return {static_cast<const char *>(data) + at * element_bytes, stride.seq * element_bytes,
            columns};
}

/* Starts to copy ROWS rows, of which `rows` exist. */
template <flash_config_t C, int ROWS>
static __device__ __forceinline__ void copy_rows(uint32_t shared, const row_source_t &source,
                                                 int32_t rows) {
    const int row = threadIdx.x / panel_chunks, chunk = threadIdx.x % panel_chunks;
    const uint32_t to = shared + chunk_offset<C>(row, chunk);
    const char *from = source.pointer + row * source.row_stride + chunk * chunk_bytes;
    const int32_t columns = source.columns - chunk * chunk_elements;
#pragma unroll
    for (int pass = 0; pass < ROWS; pass += pass_rows<C>) {
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel)
            async_copy_or_zero(to + pass * row_bytes<C> + panel * panel_chunks * chunk_bytes,
                               from + panel * panel_chunks * chunk_bytes,
                               row + pass < rows && panel * panel_elements < columns);
        from = opaque(from + pass_rows<C> * source.row_stride);
    }
}

template <flash_config_t C, int ROWS>
static __device__ __forceinline__ void
copy_q(uint32_t shared, const flash_backward_params_t &params, const gradient_tile_t &tile,
       int32_t head, int32_t query) {
    const flash_params_t &p = params.forward;
    copy_rows<C, ROWS>(shared,
                       make_source(p.q, p.q_stride, p.d_head, tile.batch_index, head,
                                   tile.sequence.q_begin + query),
                       tile.sequence.len_q - query);
}

template <flash_config_t C, int ROWS>
static __device__ __forceinline__ void
copy_d_o(uint32_t shared, const flash_backward_params_t &params, const gradient_tile_t &tile,
         int32_t head, int32_t query) {
    const flash_gradients_t &g = params.gradients;
    copy_rows<C, ROWS>(shared,
                       make_source(g.d_o, g.d_o_stride, params.forward.d_head_v, tile.batch_index,
                                   head, tile.sequence.q_begin + query),
                       tile.sequence.len_q - query);
}

/* Copies rows of Q and dO, or of K and V, into neighbouring blocks. */
template <flash_config_t C, int ROWS>
static __device__ __forceinline__ void
copy_queries(uint32_t shared, const flash_backward_params_t &params, const gradient_tile_t &tile,
             int32_t head, int32_t query) {
    copy_q<C, ROWS>(shared, params, tile, head, query);
    copy_d_o<C, ROWS>(shared + ROWS * row_bytes<C>, params, tile, head, query);
}

template <flash_config_t C, int ROWS>
static __device__ __forceinline__ void
copy_keys(uint32_t shared, const flash_backward_params_t &params, const gradient_tile_t &tile,
          int32_t head, int32_t key) {
    const flash_params_t &p = params.forward;
    const int64_t token = tile.sequence.k_begin + key;
    const int32_t rows = tile.sequence.len_k - key;
    copy_rows<C, ROWS>(shared,
                       make_source(p.k, p.k_stride, p.d_head, tile.batch_index, head, token), rows);
    copy_rows<C, ROWS>(shared + ROWS * row_bytes<C>,
                       make_source(p.v, p.v_stride, p.d_head_v, tile.batch_index, head, token),
                       rows);
}

/* Copies the logarithms of sums of a block of queries, and D behind them; 0 past the end. */
template <flash_config_t C>
static __device__ __forceinline__ void
copy_sums(uint32_t shared, const flash_backward_params_t &params, const gradient_tile_t &tile,
          int32_t head, int32_t query) {
    const flash_gradients_t &g = params.gradients;
    const int32_t i = threadIdx.x % step_rows<C>;
    const bool is_d = threadIdx.x >= step_rows<C>;
    const int64_t at = flash_row_index(&params.forward, &g, &tile.sequence, tile.batch_index, head,
                                       (int64_t)query + i);
    if (threadIdx.x < 2 * step_rows<C>)
        async_copy_word_or_zero(shared + threadIdx.x * (int)sizeof(float),
                                (is_d ? g.row_d : g.row_log_sum) + at,
                                query + i < tile.sequence.len_q);
}

/* Starts to copy the tile's rows. */
template <flash_config_t C>
static __device__ __forceinline__ void
copy_tile(uint32_t shared, const flash_backward_params_t &params, const gradient_tile_t &tile) {
    if constexpr (rows_are_keys<C>)
        copy_keys<C, tile_rows<C>>(shared, params, tile, tile.head, tile.row_begin);
    else
        copy_queries<C, tile_rows<C>>(shared, params, tile, tile.head, tile.row_begin);
}

/* Starts to copy Q of a block of queries, with sums of its rows. */
template <flash_config_t C>
static __device__ __forceinline__ void
copy_q_block(uint32_t shared, int stage, const flash_backward_params_t &params,
             const gradient_tile_t &tile, int32_t member, int32_t block) {
    const int32_t head = tile.head * params.forward.group + member, query = block * step_rows<C>;
    copy_q<C, step_rows<C>>(stage_address<C>(shared, stage), params, tile, head, query);
    copy_sums<C>(sums_address<C>(shared, stage), params, tile, head, query);
}

/* Starts to copy dO of a block of queries. */
template <flash_config_t C>
static __device__ __forceinline__ void
copy_d_o_block(uint32_t shared, int stage, const flash_backward_params_t &params,
               const gradient_tile_t &tile, int32_t member, int32_t block) {
    copy_d_o<C, step_rows<C>>(stage_address<C>(shared, stage) + step_bytes<C>, params, tile,
                              tile.head * params.forward.group + member, block * step_rows<C>);
}

/* Starts to copy a block of columns. member: of the group's query heads, if rows are keys. */
template <flash_config_t C>
static __device__ __forceinline__ void
copy_block(uint32_t shared, int stage, const flash_backward_params_t &params,
           const gradient_tile_t &tile, int32_t member, int32_t block) {
    if constexpr (rows_are_keys<C>) {
        copy_q_block<C>(shared, stage, params, tile, member, block);
        copy_d_o_block<C>(shared, stage, params, tile, member, block);
    } else {
        copy_keys<C, step_rows<C>>(stage_address<C>(shared, stage), params, tile,
                                   tile.head / params.forward.group, block * step_rows<C>);
    }
}

#endif
