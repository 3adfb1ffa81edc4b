/*
 * A mask of numbers adds an element to each score that it covers; -infinity hides the key.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_MASK_NUMBERS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_MASK_NUMBERS_CUH

#include "common/dtype.cuh"
#include "common/ptx/element.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/softmax/bias_keys.cuh"

/* Adds pair i of elements that lie side by side to two scores. */
template <int DTYPE>
static __device__ __forceinline__ void add_pair(float &low, float &high, float scale,
                                                const void *elements, int i);

template <>
__device__ __forceinline__ void add_pair<FLASH_DTYPE_FP16>(float &low, float &high, float scale,
                                                           const void *elements, int i) {
    const float2 pair = fp32_from_fp16_pair(__ldg(static_cast<const uint32_t *>(elements) + i));
    low = fmaf(low, scale, pair.x);
    high = fmaf(high, scale, pair.y);
}

template <>
__device__ __forceinline__ void add_pair<FLASH_DTYPE_BF16>(float &low, float &high, float scale,
                                                           const void *elements, int i) {
    const uint32_t pair = __ldg(static_cast<const uint32_t *>(elements) + i);
    low = fmaf(low, scale, __uint_as_float(pair << 16));
    high = fmaf(high, scale, __uint_as_float(pair & 0xffff0000u));
}

template <>
__device__ __forceinline__ void add_pair<FLASH_DTYPE_FP32>(float &low, float &high, float scale,
                                                           const void *elements, int i) {
    const float2 pair = __ldg(static_cast<const float2 *>(elements) + i);
    low = fmaf(low, scale, pair.x);
    high = fmaf(high, scale, pair.y);
}

/* Says whether the mask covers the whole block, and whether two neighbours, of which the first has
 * an even place in the block, can be loaded at once. */
template <flash_config_t C>
static __device__ __forceinline__ bool has_pairs(const flash_bias_t &bias,
                                                 const bias_keys_t &keys) {
    const int64_t places = bias.stride_batch | bias.stride_head | bias.stride_query | keys.column;
    const uint32_t pair_bytes = bias.dtype == FLASH_DTYPE_FP32 ? 8 : 4;
    const bool aligned = (places & 1) == 0 && ((uintptr_t)bias.mask & (pair_bytes - 1)) == 0;
    return aligned && bias.stride_key == 1 && keys.column >= 0 &&
           keys.column + C.B_c <= bias.n_keys;
}

template <flash_config_t C, int DTYPE, typename R>
static __device__ __forceinline__ void add_pairs(score_tile<C> &s, const flash_bias_t &bias,
                                                 const bias_keys_t &keys,
                                                 const score_scale_t &scale, const R &row_of) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t at = row_of(half).at + (int32_t)keys.column + tile_column();
        const char *elements = static_cast<const char *>(bias.mask) + at * dtype_size(DTYPE);
#pragma unroll
        for (int i = 0; i < C.B_c / 8; ++i) {
            float *x = &s.s[4 * i + 2 * half];
            add_pair<DTYPE>(x[0], x[1], scale.of_row[half], elements, 4 * i);
        }
    }
}

/* Loads an element of any type, if it is wanted; else it is 0. */
static __device__ __forceinline__ float load_number_if(bool wanted, const char *element,
                                                       int32_t dtype) {
    const bool is_wide = dtype == FLASH_DTYPE_FP32;
    DTYPES_KNOWN(7); /* numbers are of no other type */
    uint32_t bits = 0;
    bits = global_load_if(wanted && is_wide, (const uint32_t *)element, bits);
    bits = global_load_if(wanted && !is_wide, (const uint16_t *)element, bits);
    const float half = fp32_from(fp16_t{(uint16_t)bits});
    return dtype == FLASH_DTYPE_FP16 ? half : __uint_as_float(is_wide ? bits : bits << 16);
}

/* Calls f(score, number, half) for each of the thread's scores; number: an element of any type,
 * which may lie apart, or 0 where the mask does not cover the key; half: which row. It goes by 16
 * keys, to pass over those that the mask does not cover; the branches also keep ptxas from loading
 * more at once than there are registers for. */
template <flash_config_t C, typename R, typename F>
static __device__ __forceinline__ void for_each_number(score_tile<C> &s, const flash_bias_t &bias,
                                                       const bias_keys_t &keys, const R &row_of,
                                                       const F &f) {
    constexpr int group_keys = 16;
    const int32_t size = dtype_size(bias.dtype), column = (int32_t)keys.column;
    const int64_t step = bias.stride_key * size;
    const char *rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t at = row_of(half).at + (column + tile_column()) * bias.stride_key;
        rows[half] = static_cast<const char *>(bias.mask) + at * size;
    }
#pragma unroll
    for (int first = 0; first < C.B_c; first += group_keys)
        if (column + first > -group_keys && column + first < bias.n_keys)
#pragma unroll
            for (int i = 0; i < group_keys / 2; ++i) {
                const int half = i / 4, key = first + i / 2 % 2 * 8 + i % 2;
                const bool exists =
                    (uint32_t)(column + tile_column() + key) < (uint32_t)bias.n_keys;
                f(s.s[key / 8 * 4 + 2 * half + i % 2],
                  load_number_if(exists, rows[half] + key * step, bias.dtype), half);
            }
}

/* Adds numbers that may lie apart, times the factors of their rows. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void
add_scaled_numbers(score_tile<C> &s, const flash_bias_t &bias, const bias_keys_t &keys,
                   const R &row_of) {
    const float factors[2] = {row_of(0).factor, row_of(1).factor};
    for_each_number<C>(s, bias, keys, row_of, [&](float &score, float number, int half) {
        score += flash_scaled_number(number, factors[half]);
    });
}

/* Adds numbers. -infinity does not hide a score yet that is NaN or infinity: they give NaN, which
 * raise_biased_max() finds. Pairs have no factors: few masks have any, and more copies of the code
 * would make it slower for all. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void add_numbers(score_tile<C> &s, const flash_bias_t &bias,
                                                   const bias_keys_t &keys,
                                                   const score_scale_t &scale, const R &row_of) {
    DTYPES_KNOWN(7); /* numbers are of no other type */
    if (bias.head_scale != nullptr || !has_pairs<C>(bias, keys)) {
        scale_scores<C>(s, scale);
        add_scaled_numbers<C>(s, bias, keys, row_of);
    } else if (bias.dtype == FLASH_DTYPE_FP16) {
        add_pairs<C, FLASH_DTYPE_FP16>(s, bias, keys, scale, row_of);
    } else if (bias.dtype == FLASH_DTYPE_BF16) {
        add_pairs<C, FLASH_DTYPE_BF16>(s, bias, keys, scale, row_of);
    } else {
        add_pairs<C, FLASH_DTYPE_FP32>(s, bias, keys, scale, row_of);
    }
}

#endif
