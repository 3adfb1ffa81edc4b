/*
 * A consumer stores its 64 rows of a gradient from registers, in 16 bits or in fp32, to which it
 * may add.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_STORE_CUH
#define FLASH_KERNELS_SM90_BACKWARD_STORE_CUH

#include "common/gradients.h"
#include "common/ptx/convert.cuh"
#include "common/ptx/opaque.cuh"
#include "sm90/fragments.cuh"
#include "sm90/ptx/predicated.cuh"

/* Transposes the words of the quad: its thread k gives word i to thread i, and gets word k of
 * each. */
static __device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? other : w[i];
        w[i + 1] = odd ? w[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
        w[i] = upper ? other : w[i];
        w[i + 2] = upper ? w[i + 2] : other;
    }
}

/* Stores the first `columns` columns of one of the thread's rows, times a factor, in 16 bits. */
template <int DTYPE, int N>
static __device__ __forceinline__ void store_16_bit_row(uint16_t *row, int32_t columns, int half,
                                                        const float (&d)[N / 2], float factor) {
#pragma unroll
    for (int i = 0; i < N / 32; ++i) {
        const int column = (4 * i + threadIdx.x % 4) * 8;
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            w[j] = convert_pair<DTYPE>(d[16 * i + 4 * j + 2 * half] * factor,
                                       d[16 * i + 4 * j + 2 * half + 1] * factor);
        transpose_quad(w);
        global_store_if(column < columns, row + column, uint4{w[0], w[1], w[2], w[3]});
    }
}

/* Does the same in fp32. adds: to what is there. */
template <int N>
static __device__ __forceinline__ void
store_fp32_gradient_row(float *row, int32_t columns, int half, bool adds, const float (&d)[N / 2],
                        float factor) {
    float *own = row + tile_column();
    const int32_t own_columns = columns - tile_column();
#pragma unroll
    for (int first = 0; first < N; first += 32) {
        float2 pairs[4];
        own = (float *)opaque((const char *)own); /* addresses are not computed beforehand */
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = first / 2 + 4 * i + 2 * half, column = first + 8 * i;
            const bool reads = adds && column < own_columns;
            pairs[i].x = fmaf(d[at], factor, global_load_if(reads, own + column, 0.0f));
            pairs[i].y = fmaf(d[at + 1], factor, global_load_if(reads, own + column + 1, 0.0f));
        }
        global_store_pairs_if(true, own_columns - first, own + first, pairs);
    }
}

/* Does either where rows are not aligned for it: element by element. Every column is that of a
 * thread of the quad. */
template <int DTYPE, int N>
static __device__ __forceinline__ void store_elements(const flash_gradient_t &gradient, int64_t at,
                                                      int32_t columns, int half,
                                                      const float (&d)[N / 2], float factor) {
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
        const int column = 8 * i + tile_column();
        const float low = d[4 * i + 2 * half] * factor, high = d[4 * i + 2 * half + 1] * factor;
        if (gradient.dtype == FLASH_DTYPE_FP32) {
            float *const row = (float *)gradient.data + at + column;
            if (column < columns)
                row[0] = gradient.adds ? row[0] + low : low;
            if (column + 1 < columns)
                row[1] = gradient.adds ? row[1] + high : high;
        } else {
            uint16_t *const row = (uint16_t *)gradient.data + at + column;
            const uint32_t pair = convert_pair<DTYPE>(low, high);
            if (column < columns)
                row[0] = (uint16_t)pair;
            if (column + 1 < columns)
                row[1] = (uint16_t)(pair >> 16);
        }
    }
}

/* Says whether rows of so many columns can be stored in chunks of 16 bytes, or in pairs of fp32. */
static __device__ __forceinline__ bool is_aligned(const flash_gradient_t &gradient,
                                                  int32_t columns) {
    const bool fp32 = gradient.dtype == FLASH_DTYPE_FP32;
    const uint64_t elements = (uint64_t)gradient.stride.batch | (uint64_t)gradient.stride.seq |
                              (uint64_t)gradient.stride.head | (uint64_t)columns;
    return ((uint64_t)gradient.data & (fp32 ? 7 : 15)) == 0 && (elements & (fp32 ? 1 : 7)) == 0;
}

/* Stores the thread's two rows, `row` and the one APART below, of `rows` that the sequence has,
 * from token `token` of the tensor on. */
template <int DTYPE, int N, int APART = 8>
static __device__ __forceinline__ void
store_gradient(const flash_gradient_t &gradient, int32_t batch_index, int32_t head, int64_t token,
               int32_t row, int32_t rows, int32_t columns, const float (&d)[N / 2], float factor) {
    const int64_t at = batch_index * gradient.stride.batch + head * gradient.stride.head +
                       (token + row) * gradient.stride.seq;
    const int64_t below = at + APART * gradient.stride.seq;
    const int32_t upper_columns = gradient.data != nullptr && row < rows ? columns : 0;
    const int32_t lower_columns = gradient.data != nullptr && row + APART < rows ? columns : 0;
    if (!is_aligned(gradient, columns)) {
        store_elements<DTYPE, N>(gradient, at, upper_columns, 0, d, factor);
        store_elements<DTYPE, N>(gradient, below, lower_columns, 1, d, factor);
    } else if (gradient.dtype == FLASH_DTYPE_FP32) {
        float *const data = (float *)gradient.data;
        store_fp32_gradient_row<N>(data + at, upper_columns, 0, gradient.adds, d, factor);
        store_fp32_gradient_row<N>(data + below, lower_columns, 1, gradient.adds, d, factor);
    } else {
        uint16_t *const data = (uint16_t *)gradient.data;
        store_16_bit_row<DTYPE, N>(data + at, upper_columns, 0, d, factor);
        store_16_bit_row<DTYPE, N>(data + below, lower_columns, 1, d, factor);
    }
}

#endif
