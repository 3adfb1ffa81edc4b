/*
 * These kernels copy a Q of fp32, rounded to fp16 or bf16, for every CUDA family. A thread copies a
 * vector of a head. What fills up a row is 0.
 */
#include "common/copy_q.h"
#include "common/dtype.cuh"

static __device__ __forceinline__ int64_t place_of(const copy_q_params_t &p, int64_t token) {
    return p.is_dense
               ? token * p.from_stride.seq
               : token / p.seqlen_q * p.from_stride.batch + token % p.seqlen_q * p.from_stride.seq;
}

static __device__ __forceinline__ int64_t count_tokens(const copy_q_params_t &p) {
    return p.cu_seqlens_q ? min((int64_t)p.cu_seqlens_q[p.batch], p.n_tokens) : p.n_tokens;
}

static __device__ __forceinline__ void load_vector(const copy_q_params_t &p, const float *from,
                                                   int32_t column, float x[COPY_Q_VECTOR]) {
    if (p.is_aligned && column + COPY_Q_VECTOR <= p.d_head) {
        const float4 low = __ldg(reinterpret_cast<const float4 *>(from + column));
        const float4 high = __ldg(reinterpret_cast<const float4 *>(from + column) + 1);
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
#pragma unroll
        for (int i = 0; i < COPY_Q_VECTOR; i++)
            x[i] = column + i < p.d_head ? __ldg(from + column + i) : 0;
    }
}

template <int DTYPE> union vector {
    typename dtype_traits<DTYPE>::element element[COPY_Q_VECTOR];
    uint4 bits;
};

template <int DTYPE>
static __device__ __forceinline__ void copy_vector(const copy_q_params_t &p, const float *from,
                                                   uint16_t *to, int32_t column) {
    float x[COPY_Q_VECTOR];
    vector<DTYPE> y;
    load_vector(p, from, column, x);
#pragma unroll
    for (int i = 0; i < COPY_Q_VECTOR; i++)
        y.element[i] = dtype_traits<DTYPE>::from_fp32(x[i]);
    *reinterpret_cast<uint4 *>(to + column) = y.bits;
}

/* A block takes token after token, and some heads at once of each. */
template <int DTYPE> static __device__ __forceinline__ void copy_tokens(const copy_q_params_t &p) {
    const int64_t n_tokens = count_tokens(p);
    const int32_t first_head = threadIdx.x / p.row_vectors;
    const int32_t column = threadIdx.x % p.row_vectors * COPY_Q_VECTOR;
    for (int64_t token = blockIdx.x; token < n_tokens; token += gridDim.x) {
        const float *from = p.from + place_of(p, token);
        uint16_t *to = static_cast<uint16_t *>(p.to) + token * p.to_stride.seq;
        for (int64_t head = first_head; head < p.n_heads; head += p.block_heads)
            copy_vector<DTYPE>(p, from + head * p.from_stride.head, to + head * p.to_stride.head,
                               column);
    }
}

extern "C" __global__ void __launch_bounds__(COPY_Q_THREADS)
    flash_copy_q_fp16(const __grid_constant__ copy_q_params_t params) {
    copy_tokens<FLASH_DTYPE_FP16>(params);
}

extern "C" __global__ void __launch_bounds__(COPY_Q_THREADS)
    flash_copy_q_bf16(const __grid_constant__ copy_q_params_t params) {
    copy_tokens<FLASH_DTYPE_BF16>(params);
}
