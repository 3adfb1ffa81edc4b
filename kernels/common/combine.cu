/*
 * The combine kernel serves every CUDA family. It merges partial results by their LSE:
 *
 *     lse = log(sum_i exp(lse_i)),  o = sum_i exp(lse_i - lse) o_i.
 *
 * One warp merges one row, in fp32, relative to the largest lse_i. Partial results whose LSE is
 * -infinity have no weight and are not read. A sink joins the sum by which o is divided, after all
 * of them; lse is without it.
 */
#include "common/combine.h"
#include "common/dtype.cuh"
#include "common/sink.h"

static __device__ __forceinline__ float load_element(const void *data, int64_t i, int dtype) {
    DTYPES_KNOWN(7); /* only K and V are of 8 bits */
    if (dtype == FLASH_DTYPE_FP16)
        return dtype_load<FLASH_DTYPE_FP16>(data, i);
    if (dtype == FLASH_DTYPE_BF16)
        return dtype_load<FLASH_DTYPE_BF16>(data, i);
    return dtype_load<FLASH_DTYPE_FP32>(data, i);
}

static __device__ __forceinline__ void store_element(void *data, int64_t i, int dtype, float x) {
    DTYPES_KNOWN(7); /* only K and V are of 8 bits */
    if (dtype == FLASH_DTYPE_FP16)
        dtype_store<FLASH_DTYPE_FP16>(data, i, x);
    else if (dtype == FLASH_DTYPE_BF16)
        dtype_store<FLASH_DTYPE_BF16>(data, i, x);
    else
        dtype_store<FLASH_DTYPE_FP32>(data, i, x);
}

/* A row of [batch, n_heads, seqlen_q], in the order of lse. */
typedef struct combine_row {
    int64_t partial_at; /* its first element in a partial result */
    int64_t o_at;
    int64_t partial_lse_at; /* its LSE in a partial result */
    int64_t lse_at;
    float max_lse; /* reference maximum: the largest lse_i, or 0 if none is finite */
    float total;   /* sum of exp(lse_i - max_lse) */
    float divisor; /* total with the sink: infinity, which makes o 0, if it is far above */
} combine_row_t;

static __device__ __forceinline__ int64_t element_at(const flash_tensor_t &tensor, int64_t batch,
                                                     int64_t seq, int64_t head) {
    return batch * tensor.stride_batch + seq * tensor.stride_seq + head * tensor.stride_head;
}

static __device__ __forceinline__ float partial_lse(const flash_combine_args_t &a,
                                                    const combine_row_t &row, int64_t i) {
    return a.lse_partials ? a.lse_partials[i][row.partial_lse_at]
                          : a.lse_partial[i * a.lse_partial_stride + row.partial_lse_at];
}

static __device__ __forceinline__ float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

static __device__ __forceinline__ float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ __forceinline__ combine_row_t find_row(const flash_combine_args_t &a,
                                                         int64_t number, int lane) {
    const int64_t seq = number % a.seqlen_q;
    const int64_t head = number / a.seqlen_q % a.n_heads;
    const int64_t batch = number / a.seqlen_q / a.n_heads;
    combine_row_t row = {element_at(a.o_partial, batch, seq, head),
                         element_at(a.o, batch, seq, head),
                         batch * a.lse_partial_stride_batch + seq * a.lse_partial_stride_seq +
                             head * a.lse_partial_stride_head,
                         batch * a.lse_stride_batch + seq * a.lse_stride_seq +
                             head * a.lse_stride_head,
                         -INFINITY,
                         0,
                         0};
    const float sink = flash_sink_at(a.sinks, head);
    for (int64_t i = lane; i < a.n_partials; i += 32)
        row.max_lse = fmaxf(row.max_lse, partial_lse(a, row, i));
    row.max_lse = warp_max(row.max_lse);
    row.max_lse = row.max_lse == -INFINITY ? 0 : row.max_lse; /* -inf - -inf is NaN */
    for (int64_t i = lane; i < a.n_partials; i += 32)
        row.total += expf(partial_lse(a, row, i) - row.max_lse);
    row.total = warp_sum(row.total);
    row.divisor = row.total + expf(sink - row.max_lse);
    return row;
}

static __device__ __forceinline__ float merge_element(const flash_combine_args_t &a,
                                                      const combine_row_t &row, int64_t column) {
    float sum = 0;
    for (int64_t i = 0; i < a.n_partials; i++) {
        const float lse = partial_lse(a, row, i);
        if (lse == -INFINITY)
            continue;
        const void *partial = a.o_partials ? a.o_partials[i] : a.o_partial.data;
        const int64_t from = a.o_partials ? 0 : i * a.stride_partial;
        const int64_t at = from + row.partial_at + column;
        sum += expf(lse - row.max_lse) * load_element(partial, at, a.o_partial.dtype);
    }
    return row.total != 0 ? sum / row.divisor : 0;
}

static __device__ __forceinline__ void merge_row(const flash_combine_args_t &a,
                                                 const combine_row_t &row, int lane) {
    for (int64_t column = lane; column < a.d_head; column += 32)
        store_element(a.o.data, row.o_at + column, a.o.dtype, merge_element(a, row, column));
    __syncwarp(); /* lse may be a partial LSE, which other lanes may still read */
    if (a.lse && lane == 0)
        a.lse[row.lse_at] = row.total != 0 ? row.max_lse + logf(row.total) : -INFINITY;
}

extern "C" __global__ void __launch_bounds__(32 * COMBINE_WARPS)
    flash_combine_rows(const __grid_constant__ flash_combine_args_t args) {
    const int64_t n_rows = args.batch * args.n_heads * args.seqlen_q;
    const int lane = threadIdx.x % 32;
    const int64_t first = (int64_t)blockIdx.x * COMBINE_WARPS + threadIdx.x / 32;
    for (int64_t number = first; number < n_rows; number += (int64_t)gridDim.x * COMBINE_WARPS)
        merge_row(args, find_row(args, number, lane), lane);
}
