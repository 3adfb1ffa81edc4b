/*
 * These kernels begin a backward call, for every CUDA family (row_sums.h).
 *
 * ROW_SUMS_LANES threads share a row of dO and O. All sums are in a fixed order.
 */
#include "common/row_sums.h"

#include "common/dropout.h"
#include "common/dtype.cuh"
#include "common/sink.h"

#include <stdint.h>

constexpr float log2_of_e = 1.44269504088896340736f;
constexpr int chunk = 8; /* elements that a thread takes at a time */

/* ---- A row ---- */

typedef struct item {
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head;
    int64_t block;
} item_t;

static __device__ __forceinline__ item_t make_item(const flash_params_t &p, int64_t number) {
    const int64_t blocks = row_sums_blocks(p.seqlen_q);
    item_t item;
    item.head = (int32_t)(number % p.n_heads);
    item.block = number / p.n_heads % blocks;
    item.batch_index = (int32_t)(number / p.n_heads / blocks);
    item.sequence = flash_sequence(&p, item.batch_index);
    return item;
}

static __device__ __forceinline__ int64_t element_of_row(const flash_strides_t &stride,
                                                         const item_t &item, int64_t row) {
    return item.batch_index * stride.batch + (item.sequence.q_begin + row) * stride.seq +
           item.head * stride.head;
}

/* Returns where a number of LSE or of its gradient is. */
static __device__ __forceinline__ int64_t number_at(const flash_params_t &p,
                                                    const flash_strides_t &stride,
                                                    const item_t &item, int64_t row) {
    const int64_t head =
        stride.head == FLASH_STRIDE_TOTAL ? (int64_t)p.cu_seqlens_q[p.batch] : stride.head;
    return item.batch_index * stride.batch + (item.sequence.q_begin + row) * stride.seq +
           item.head * head;
}

template <int DTYPE>
static __device__ __forceinline__ void load_chunk(const void *data, int64_t at, int32_t columns,
                                                  bool is_aligned, float (&x)[chunk]) {
    typedef dtype_traits<DTYPE> traits;
    typedef typename traits::element element;
    union {
        uint4 words[chunk * sizeof(element) / sizeof(uint4)];
        element elements[chunk];
    } y;
    const element *from = static_cast<const element *>(data) + at;
    if (is_aligned && columns >= chunk) {
#pragma unroll
        for (int i = 0; i < int(sizeof y.words / sizeof(uint4)); ++i)
            y.words[i] = reinterpret_cast<const uint4 *>(from)[i];
#pragma unroll
        for (int i = 0; i < chunk; ++i)
            x[i] = traits::to_fp32(y.elements[i]);
    } else {
#pragma unroll
        for (int i = 0; i < chunk; ++i)
            x[i] = i < columns ? traits::to_fp32(from[i]) : 0.0f;
    }
}

static __device__ __forceinline__ void load_chunk_of(int32_t dtype, const void *data, int64_t at,
                                                     int32_t columns, bool is_aligned,
                                                     float (&x)[chunk]) {
    DTYPES_KNOWN(7); /* O and dO are of no other type */
    if (dtype == FLASH_DTYPE_FP16)
        load_chunk<FLASH_DTYPE_FP16>(data, at, columns, is_aligned, x);
    else if (dtype == FLASH_DTYPE_BF16)
        load_chunk<FLASH_DTYPE_BF16>(data, at, columns, is_aligned, x);
    else
        load_chunk<FLASH_DTYPE_FP32>(data, at, columns, is_aligned, x);
}

/* Returns the sum over a row of dO * O, to all threads of the row. */
static __device__ __forceinline__ float dot_of_row(const row_sums_params_t &x, const item_t &item,
                                                   int64_t row, bool exists) {
    const flash_params_t &p = x.call.forward;
    const int64_t o = element_of_row(p.o_stride, item, row);
    const int64_t d_o = element_of_row(x.call.gradients.d_o_stride, item, row);
    const int lane = threadIdx.x % ROW_SUMS_LANES;
    float sum = 0;
    for (int i = lane * chunk; exists && i < p.d_head_v; i += ROW_SUMS_LANES * chunk) {
        float a[chunk], b[chunk];
        load_chunk_of(p.o_dtype, p.o, o + i, p.d_head_v - i, x.is_aligned, a);
        load_chunk_of(x.d_o_dtype, x.call.gradients.d_o, d_o + i, p.d_head_v - i, x.is_aligned, b);
#pragma unroll
        for (int j = 0; j < chunk; ++j)
            sum = fmaf(a[j], b[j], sum);
    }
#pragma unroll
    for (int distance = ROW_SUMS_LANES / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    return sum;
}

/* Returns log(exp(lse) + exp(sink)). Without a sink that is LSE itself, of any value. */
static __device__ __forceinline__ float add_sink(float lse, float sink) {
    const float most = fmaxf(lse, sink), least = fminf(lse, sink);
    if (sink == -INFINITY)
        return lse;
    if (isnan(lse) || isnan(sink))
        return NAN;
    return most == INFINITY ? INFINITY : most + log1pf(expf(least - most));
}

/* Returns the weight of a sink in its row. */
static __device__ __forceinline__ float weight_of_sink(float sink, float log_sum) {
    return sink == INFINITY && log_sum == INFINITY ? 1.0f : expf(sink - log_sum);
}

/* Stores what kernels need of a row, and returns its part of the gradient of the sink. */
static __device__ __forceinline__ float finish_row(const row_sums_params_t &x, const item_t &item,
                                                   int64_t row, float sum) {
    const flash_params_t &p = x.call.forward;
    const flash_gradients_t &g = x.call.gradients;
    const float lse = p.lse[number_at(p, p.lse_stride, item, row)];
    const float sink = flash_sink_at(p.sinks, item.head);
    const bool sees_no_key = lse == -INFINITY;
    const float log_sum = sees_no_key ? INFINITY : add_sink(lse, sink);
    const float dot = sees_no_key ? 0.0f : sum;
    const float d_lse =
        g.d_lse && !sees_no_key ? g.d_lse[number_at(p, g.d_lse_stride, item, row)] : 0.0f;
    const float of_lse = d_lse == 0.0f ? 0.0f : d_lse * expf(fminf(log_sum - lse, FLASH_SINK_MOST));
    const int64_t at = flash_row_index(&p, &g, &item.sequence, item.batch_index, item.head, row);
    const float d = dot - of_lse;
    g.row_d[at] = flash_drops(&p.dropout) ? d / p.dropout.scale : d;
    g.row_log_sum[at] = log_sum * log2_of_e;
    return sees_no_key || sink == -INFINITY ? 0.0f : -weight_of_sink(sink, log_sum) * dot;
}

/* ---- Kernels ---- */

/* Returns the place of the parts of the gradients of sinks of a sequence's block. */
static __device__ __forceinline__ int64_t place_of(const flash_backward_params_t &call,
                                                   const flash_sequence_t &s, int32_t batch_index,
                                                   int64_t block) {
    const int64_t row = flash_row_index(&call.forward, &call.gradients, &s, batch_index, 0, 0);
    return row / ROW_SUMS_ROWS + batch_index + block;
}

static __device__ __forceinline__ void add_up_sinks(const row_sums_params_t &x, const item_t &item,
                                                    float of_row) {
    __shared__ float parts[ROW_SUMS_ROWS];
    if (threadIdx.x % ROW_SUMS_LANES == 0)
        parts[threadIdx.x / ROW_SUMS_LANES] = of_row;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < ROW_SUMS_ROWS; ++i)
            sum += parts[i];
        x.sink_sums[item.head * x.n_places +
                    place_of(x.call, item.sequence, item.batch_index, item.block)] = sum;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(ROW_SUMS_THREADS)
    flash_row_sums(const __grid_constant__ row_sums_params_t params) {
    const flash_params_t &p = params.call.forward;
    const int64_t items = p.batch * row_sums_blocks(p.seqlen_q) * p.n_heads;
    for (int64_t number = blockIdx.x; number < items; number += gridDim.x) {
        const item_t item = make_item(p, number);
        const int64_t row = item.block * ROW_SUMS_ROWS + threadIdx.x / ROW_SUMS_LANES;
        const bool exists = row < item.sequence.len_q;
        if (item.block * ROW_SUMS_ROWS >= item.sequence.len_q)
            continue;
        const float sum = dot_of_row(params, item, row, exists);
        const float of_row =
            exists && threadIdx.x % ROW_SUMS_LANES == 0 ? finish_row(params, item, row, sum) : 0.0f;
        if (params.sink_sums)
            add_up_sinks(params, item, of_row);
    }
}

/* A block adds up the parts of a head: each thread those of every ROW_SUMS_THREADS-th block of each
 * sequence, then the threads' sums. */
extern "C" __global__ void __launch_bounds__(ROW_SUMS_THREADS)
    flash_sink_sums(const __grid_constant__ row_sums_params_t params) {
    __shared__ double sums[ROW_SUMS_THREADS];
    const flash_params_t &p = params.call.forward;
    const int32_t head = blockIdx.x;
    double sum = 0;
    for (int32_t b = 0; b < p.batch; ++b) {
        const flash_sequence_t s = flash_sequence(&p, b);
        const float *parts =
            params.sink_sums + head * params.n_places + place_of(params.call, s, b, 0);
        for (int64_t i = threadIdx.x; i * ROW_SUMS_ROWS < s.len_q; i += ROW_SUMS_THREADS)
            sum += (double)parts[i];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < ROW_SUMS_THREADS; ++i)
            sum += sums[i];
        params.call.gradients.d_sinks[head] = (float)sum;
    }
}

/* ---- Tokens that are not in use ---- */

/* Clears a token of a gradient, all heads of it. */
template <typename bits>
static __device__ __forceinline__ void clear_token(const flash_gradient_t &gradient, int64_t at,
                                                   int32_t n_heads, int32_t d_head) {
    bits *data = static_cast<bits *>(gradient.data) + at;
    for (int64_t i = threadIdx.x; i < (int64_t)n_heads * d_head; i += CLEAR_ROWS_THREADS)
        data[i / d_head * gradient.stride.head + i % d_head] = 0;
}

/* Clears token `token` of a place of n_tokens, which begins at place_begin, unless it is in
 * begin ... end - 1 of the batch entry. */
static __device__ __forceinline__ void clear_unused(const flash_gradient_t &gradient, int32_t b,
                                                    flash_range_t place, int64_t begin, int64_t end,
                                                    int64_t token, int32_t n_heads,
                                                    int32_t d_head) {
    const int64_t i = place.begin + token;
    if (gradient.data == nullptr || gradient.adds || i >= place.end || (i >= begin && i < end))
        return;
    const int64_t at = b * gradient.stride.batch + i * gradient.stride.seq;
    if (dtype_size(gradient.dtype) == 2)
        clear_token<uint16_t>(gradient, at, n_heads, d_head);
    else
        clear_token<uint32_t>(gradient, at, n_heads, d_head);
}

static __device__ __forceinline__ flash_range_t place_in(const int32_t *cu_seqlens, int32_t seqlen,
                                                         int32_t b) {
    return cu_seqlens ? flash_range_t{cu_seqlens[b], cu_seqlens[b + 1]} : flash_range_t{0, seqlen};
}

extern "C" __global__ void __launch_bounds__(CLEAR_ROWS_THREADS)
    flash_clear_rows(const __grid_constant__ flash_backward_params_t params) {
    const flash_params_t &p = params.forward;
    const flash_gradients_t &g = params.gradients;
    const int64_t longest = max(p.seqlen_q, p.seqlen_k);
    for (int64_t item = blockIdx.x; item < p.batch * longest; item += gridDim.x) {
        const int32_t b = (int32_t)(item / longest);
        const int64_t token = item % longest;
        const flash_sequence_t s = flash_sequence(&p, b);
        const flash_range_t q = place_in(p.cu_seqlens_q, p.seqlen_q, b);
        const flash_range_t k = place_in(p.cu_seqlens_k, p.seqlen_k, b);
        const int64_t first_key = s.len_k > 0 ? s.k_begin : k.end;
        const int64_t end_key = s.len_k > 0 ? s.k_begin + s.len_k : k.end;
        clear_unused(g.dq, b, q, s.q_begin, s.q_begin + s.len_q, token, p.n_heads, p.d_head);
        clear_unused(g.dk, b, k, first_key, end_key, token, p.n_heads_kv, p.d_head);
        clear_unused(g.dv, b, k, first_key, end_key, token, p.n_heads_kv, p.d_head_v);
    }
}
