/*
 * A mask of numbers adds an element to each score that it covers; -infinity hides the key.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_MASK_NUMBERS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_MASK_NUMBERS_CUH

#include "common/dtype.cuh"
#include "common/ptx/element.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/softmax/bias_keys.cuh"

/* Loads pair i of elements that lie side by side. */
template <int DTYPE>
static __device__ __forceinline__ float2 load_pair(const void *elements, int i);

template <>
__device__ __forceinline__ float2 load_pair<FLASH_DTYPE_FP16>(const void *elements, int i) {
    return fp32_from_fp16_pair(__ldg(static_cast<const uint32_t *>(elements) + i));
}

template <>
__device__ __forceinline__ float2 load_pair<FLASH_DTYPE_BF16>(const void *elements, int i) {
    const uint32_t pair = __ldg(static_cast<const uint32_t *>(elements) + i);
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

template <>
__device__ __forceinline__ float2 load_pair<FLASH_DTYPE_FP32>(const void *elements, int i) {
    return __ldg(static_cast<const float2 *>(elements) + i);
}

/* The numbers of the thread's two rows are multiplied by this. Most masks have no factors. */
template <bool HAS_FACTORS> struct number_scale {};
template <> struct number_scale<true> { float of_row[2]; };

template <bool HAS_FACTORS, typename R>
static __device__ __forceinline__ number_scale<HAS_FACTORS> find_number_scale(const R &row_of) {
    if constexpr (HAS_FACTORS)
        return {{row_of(0).factor, row_of(1).factor}};
    else
        return {};
}

/* Returns what a number of a row adds. */
template <bool HAS_FACTORS>
static __device__ __forceinline__ float
added_number(float number, const number_scale<HAS_FACTORS> &scale, int half) {
    if constexpr (HAS_FACTORS)
        return flash_scaled_number(number, scale.of_row[half]);
    else
        return number;
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

template <flash_config_t C, int DTYPE, bool HAS_FACTORS, typename R>
static __device__ __forceinline__ void add_pairs(score_tile<C> &s, const flash_bias_t &bias,
                                                 const bias_keys_t &keys,
                                                 const score_scale_t &scale, const R &row_of) {
    const number_scale<HAS_FACTORS> factors = find_number_scale<HAS_FACTORS>(row_of);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t at = row_of(half).at + (int32_t)keys.column + tile_column();
        const char *elements = static_cast<const char *>(bias.mask) + at * dtype_size(DTYPE);
#pragma unroll
        for (int i = 0; i < C.B_c / 8; ++i) {
            const float2 pair = load_pair<DTYPE>(elements, 4 * i);
            float *x = &s.s[4 * i + 2 * half];
            x[0] = fmaf(x[0], scale.of_row[half], added_number(pair.x, factors, half));
            x[1] = fmaf(x[1], scale.of_row[half], added_number(pair.y, factors, half));
        }
    }
}

/* Loads an element of any type, if it is wanted; else it is 0. */
static __device__ __forceinline__ float load_number_if(bool wanted, const char *element,
                                                       int32_t dtype) {
    const bool is_wide = dtype == FLASH_DTYPE_FP32;
    DTYPES_KNOWN(5); /* numbers are of no other type */
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

template <flash_config_t C, bool HAS_FACTORS, typename R>
static __device__ __forceinline__ void
add_apart_or_pairs(score_tile<C> &s, const flash_bias_t &bias, const bias_keys_t &keys,
                   const score_scale_t &scale, const R &row_of) {
    DTYPES_KNOWN(5); /* numbers are of no other type */
    if (!has_pairs<C>(bias, keys)) {
        const number_scale<HAS_FACTORS> factors = find_number_scale<HAS_FACTORS>(row_of);
        scale_scores<C>(s, scale);
        for_each_number<C>(s, bias, keys, row_of, [&](float &score, float number, int half) {
            score += added_number(number, factors, half);
        });
    } else if (bias.dtype == FLASH_DTYPE_FP16) {
        add_pairs<C, FLASH_DTYPE_FP16, HAS_FACTORS>(s, bias, keys, scale, row_of);
    } else if (bias.dtype == FLASH_DTYPE_BF16) {
        add_pairs<C, FLASH_DTYPE_BF16, HAS_FACTORS>(s, bias, keys, scale, row_of);
    } else {
        add_pairs<C, FLASH_DTYPE_FP32, HAS_FACTORS>(s, bias, keys, scale, row_of);
    }
}

/* Adds numbers. -infinity does not hide a score yet that is NaN or infinity: they give NaN, which
 * raise_biased_max() finds. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void add_numbers(score_tile<C> &s, const flash_bias_t &bias,
                                                   const bias_keys_t &keys,
                                                   const score_scale_t &scale, const R &row_of) {
    if (bias.head_scale == nullptr)
        add_apart_or_pairs<C, false>(s, bias, keys, scale, row_of);
    else
        add_apart_or_pairs<C, true>(s, bias, keys, scale, row_of);
}

#endif
