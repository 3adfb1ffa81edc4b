/*
 * Q of bf16 becomes fp16 beside K of e4m3, each row times a power of two (common/fp16_rows.cuh),
 * while it is in the registers of the threads that copy it.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_CONVERT_QUERIES_CUH
#define FLASH_KERNELS_SM90_DECODE_CONVERT_QUERIES_CUH

#include "common/fp16_rows.cuh"
#include "sm90/decode/queries.cuh"

/* Returns the largest magnitude of a row of bf16, by its bits, of which the threads that copy the
 * row have parts. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t largest_of_queries(const query_chunks<C> &chunks) {
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < thread_query_chunks<C>; ++i)
        pair = larger_magnitudes(pair, chunks.of[i]);
    uint32_t largest = larger_of_pair(pair);
#pragma unroll
    for (int step = 1; step < row_threads<C>; step *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    return largest;
}

/* Makes fp16 of a row of bf16. Returns the exponent of its power of two. */
template <flash_config_t C>
static __device__ __forceinline__ int convert_queries(query_chunks<C> &chunks) {
    const int exponent = fp16_exponent_of_row(largest_of_queries<C>(chunks));
    const float factor = power_of_two(exponent);
#pragma unroll
    for (int i = 0; i < thread_query_chunks<C>; ++i)
        chunks.of[i] = fp16_from_scaled_bf16(chunks.of[i], factor);
    return exponent;
}

#endif
