/*
 * These kernels copy a Q of fp32, rounded to fp16 or bf16, or rows of 16 bits as they are, for
 * every CUDA family. A thread copies a vector of a head. What fills up a row is 0.
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

/* Copies a vector of 16 bits. */
static __device__ __forceinline__ void copy_vector_of_halves(const copy_q_params_t &p,
                                                             const uint16_t *from, uint16_t *to,
                                                             int32_t column) {
    uint32_t words[COPY_Q_VECTOR / 2] = {};
    if (p.is_aligned && column + COPY_Q_VECTOR <= p.d_head) {
        *reinterpret_cast<uint4 *>(to + column) = *reinterpret_cast<const uint4 *>(from + column);
        return;
    }
#pragma unroll
    for (int i = 0; i < COPY_Q_VECTOR; i++)
        if (column + i < p.d_head)
            words[i / 2] |= (uint32_t)from[column + i] << i % 2 * 16;
    *reinterpret_cast<uint4 *>(to + column) = uint4{words[0], words[1], words[2], words[3]};
}

/* A block takes token after token, and some heads at once of each. copy(from, to, column) copies a
 * vector of a row. */
template <typename source, typename F>
static __device__ __forceinline__ void copy_tokens(const copy_q_params_t &p, const F &copy) {
    const int64_t n_tokens = count_tokens(p);
    const int32_t first_head = threadIdx.x / p.row_vectors;
    const int32_t column = threadIdx.x % p.row_vectors * COPY_Q_VECTOR;
    for (int64_t token = blockIdx.x; token < n_tokens; token += gridDim.x) {
        const source *from = static_cast<const source *>(p.from) + place_of(p, token);
        uint16_t *to = static_cast<uint16_t *>(p.to) + token * p.to_stride.seq;
        for (int64_t head = first_head; head < p.n_heads; head += p.block_heads)
            copy(from + head * p.from_stride.head, to + head * p.to_stride.head, column);
    }
}

template <int DTYPE> static __device__ __forceinline__ void copy_rounded(const copy_q_params_t &p) {
    copy_tokens<float>(p, [&](const float *from, uint16_t *to, int32_t column) {
        copy_vector<DTYPE>(p, from, to, column);
    });
}

extern "C" __global__ void __launch_bounds__(COPY_Q_THREADS)
    flash_copy_q_fp16(const __grid_constant__ copy_q_params_t params) {
    copy_rounded<FLASH_DTYPE_FP16>(params);
}

extern "C" __global__ void __launch_bounds__(COPY_Q_THREADS)
    flash_copy_q_bf16(const __grid_constant__ copy_q_params_t params) {
    copy_rounded<FLASH_DTYPE_BF16>(params);
}

extern "C" __global__ void __launch_bounds__(COPY_Q_THREADS)
    flash_copy_halves(const __grid_constant__ copy_q_params_t params) {
    copy_tokens<uint16_t>(params, [&](const uint16_t *from, uint16_t *to, int32_t column) {
        copy_vector_of_halves(params, from, to, column);
    });
}
