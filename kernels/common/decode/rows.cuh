/*
 * This file says which query and which query head a row of a block is, and where it lies.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_ROWS_CUH
#define FLASH_KERNELS_COMMON_DECODE_ROWS_CUH

#include "common/decode/block.cuh"
#include "common/sink.h"

/* A row of a K/V head: a query of the sequence and a query head of the group. */
typedef struct head_row {
    int32_t query;
    int32_t head; /* in the group */
} head_row_t;

static __device__ __forceinline__ head_row_t find_row(const decode_params_t &params,
                                                      int32_t number) {
    const int32_t query = flash_divide(number, params.by_group);
    return {query, number - query * params.attention.group};
}

/* Returns the elements from the first one of a tensor like Q to the first one of the row. */
static __device__ __forceinline__ int64_t row_offset(const flash_params_t &p,
                                                     const flash_strides_t &stride,
                                                     const decode_block_t &block, int32_t head_kv,
                                                     const head_row_t &row) {
    return block.piece.batch_index * stride.batch +
           (block.sequence.q_begin + row.query) * stride.seq +
           ((int64_t)head_kv * p.group + row.head) * stride.head;
}

/* Loads the sink of the row's query head; -infinity if there are none. */
static __device__ __forceinline__ float load_sink(const flash_params_t &p, int32_t head_kv,
                                                  const head_row_t &row) {
    return flash_sink_at(p.sinks, (int64_t)head_kv * p.group + row.head);
}

#endif
