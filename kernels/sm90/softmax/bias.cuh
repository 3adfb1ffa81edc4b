/*
 * Kernels with bias add ALiBi and masks to the scores of a block. Which of them a call has, and of
 * which kind, is asked once for a block, and answered by uniform values, since a score has only a
 * few operations of its own. No lane leaves the others: see ptx/predicated.cuh.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_BIAS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_BIAS_CUH

#include "common/bias.h"
#include "common/dtype.cuh"
#include "sm90/ptx/in_place.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/softmax/biased_unit.cuh"
#include "sm90/softmax/mask.cuh"
#include "sm90/softmax/softmax.cuh"

/* These uniform values say how the keys of a block lie to the bias. */
typedef struct bias_keys {
    int32_t first_key;
    int32_t first_diagonal; /* the key at the place of the tile's first row */
    int32_t last_diagonal;  /* of its last row, or beyond */
    int64_t column;         /* of the mask, at the first key; negative before its first one */
} bias_keys_t;

static __device__ __forceinline__ bias_keys_t find_bias_keys(const flash_bias_t &bias,
                                                             int32_t len_k, int32_t first_key,
                                                             int32_t first_diagonal,
                                                             int32_t last_diagonal) {
    const int64_t first_of_mask = (int64_t)bias.first_key + (bias.is_last_keys ? len_k : 0);
    return bias_keys_t{first_key, first_diagonal, last_diagonal, first_key - first_of_mask};
}

/* Calls f(score, column) for each of the thread's scores of a row. column: how far it is from the
 * thread's first one. */
template <flash_config_t C, typename F>
static __device__ __forceinline__ void for_each_score(score_tile<C> &s, int half, const F &f) {
#pragma unroll
    for (int i = 0; i < C.B_c / 4; ++i)
        f(s.s[i / 2 * 4 + 2 * half + i % 2], i / 2 * 8 + i % 2);
}

/* Scores of the thread's two rows are multiplied by this to be in the exponent of e. */
typedef struct score_scale {
    float of_row[2];
} score_scale_t;

template <flash_config_t C>
static __device__ __forceinline__ void scale_scores(score_tile<C> &s, const score_scale_t &scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        for_each_score<C>(s, half, [&](float &score, int) { score *= scale.of_row[half]; });
}

/* ---- ALiBi ---- */

/* Adds ALiBi. Where all keys of the block are at the same side of every row's place, it is a linear
 * function of the key. Distances are exact below 2^24 keys. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void add_alibi(score_tile<C> &s, const bias_keys_t &keys,
                                                 const score_scale_t &scale, const R &row_of) {
    const bool is_left = keys.first_key + C.B_c - 1 <= keys.first_diagonal;
    const bool is_right = keys.first_key >= keys.last_diagonal;
    if (is_left || is_right) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_bias_row_t row = row_of(half);
            const float slope = is_left ? row.slope : -row.slope;
            const float first = slope * (float)(keys.first_key + tile_column() - row.diagonal);
            for_each_score<C>(s, half, [&](float &score, int column) {
                score = fmaf(score, scale.of_row[half], fmaf(slope, (float)column, first));
            });
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_bias_row_t row = row_of(half);
            const float first = (float)(keys.first_key + tile_column() - row.diagonal);
            for_each_score<C>(s, half, [&](float &score, int column) {
                const float distance = fabsf(first + (float)column);
                score = fmaf(score, scale.of_row[half], -row.slope * distance);
            });
        }
    }
}

/* ---- Masks of bits ---- */

/* Loads word i of a row's bits; keys that the mask does not cover are visible. */
static __device__ __forceinline__ uint32_t load_mask_word(const uint32_t *row, int32_t i,
                                                          int32_t n_keys) {
    const int32_t covered = n_keys - 32 * i;
    const uint32_t word = global_load_if(i >= 0 && covered > 0, row + i, ~0u);
    return word | ~low_bits(max(covered, 0));
}

/* Gathers the bits of the thread's eight columns of 32, two in eight, which are the lowest bits of
 * each byte. */
static __device__ __forceinline__ uint32_t gather_columns(uint32_t bits) {
    return (bits & 0x03030303u) * 0x01041040u >> 24;
}

/* Sets the bits of the thread's columns among the i-th 32 keys of a block. of_keys: a bit for each.
 */
template <flash_config_t C>
static __device__ __forceinline__ void set_columns(column_bits<C.B_c / 4> &columns, int i,
                                                   uint32_t of_keys) {
    columns.words[i / 4] |= gather_columns(of_keys >> tile_column()) << i % 4 * 8;
}

/* Returns bits that are set for those of the thread's columns that the mask shows. column: of the
 * mask, at the block's first key. Mostly the block begins with a word, and the mask covers it. */
template <flash_config_t C>
static __device__ __forceinline__ column_bits<C.B_c / 4>
shown_columns(const uint32_t *row, int32_t column, int32_t n_keys) {
    constexpr int words = (C.B_c + 31) / 32;
    column_bits<C.B_c / 4> shown = {};
    const int32_t first = column >> 5;
    if (column >= 0 && column % 32 == 0 && column <= n_keys - 32 * words) {
#pragma unroll
        for (int i = 0; i < words; ++i)
            set_columns<C>(shown, i, __ldg(row + first + i));
    } else {
        uint32_t word = load_mask_word(row, first, n_keys);
#pragma unroll
        for (int i = 0; i < words; ++i) {
            const uint32_t next = load_mask_word(row, first + i + 1, n_keys);
            set_columns<C>(shown, i, __funnelshift_r(word, next, column));
            word = next;
        }
    }
    return shown;
}

template <flash_config_t C, typename R>
static __device__ __forceinline__ void hide_by_bits(score_tile<C> &s, const flash_bias_t &bias,
                                                    const bias_keys_t &keys, const R &row_of) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        hide_columns<C>(s, half,
                        shown_columns<C>(static_cast<const uint32_t *>(bias.mask) + row_of(half).at,
                                         (int32_t)keys.column, bias.n_keys));
}

/* ---- Masks of numbers ---- */

/* Adds pair i of elements that lie side by side to two scores. */
template <int DTYPE>
static __device__ __forceinline__ void add_pair(float &low, float &high, float scale,
                                                const void *elements, int i);

template <>
__device__ __forceinline__ void add_pair<FLASH_DTYPE_FP16>(float &low, float &high, float scale,
                                                           const void *elements, int i) {
    const float2 pair = __half22float2(__ldg(static_cast<const __half2 *>(elements) + i));
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
    DTYPES_KNOWN(4); /* numbers are of no other type */
    uint32_t bits = 0;
    bits = global_load_if(wanted && is_wide, (const uint32_t *)element, bits);
    bits = global_load_if(wanted && !is_wide, (const uint16_t *)element, bits);
    const float half = __half2float(__ushort_as_half((uint16_t)bits));
    return dtype == FLASH_DTYPE_FP16 ? half : __uint_as_float(is_wide ? bits : bits << 16);
}

/* Calls f(score, number) for each of the thread's scores; number: an element of any type, which may
 * lie apart, or 0 where the mask does not cover the key. It goes by 16 keys, to pass over those
 * that the mask does not cover; the branches also keep ptxas from loading more at once than there
 * are registers for. */
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
                  load_number_if(exists, rows[half] + key * step, bias.dtype));
            }
}

/* Adds numbers. -infinity does not hide a score yet that is NaN or infinity: they give NaN, which
 * raise_biased_max() finds. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void add_numbers(score_tile<C> &s, const flash_bias_t &bias,
                                                   const bias_keys_t &keys,
                                                   const score_scale_t &scale, const R &row_of) {
    DTYPES_KNOWN(4); /* numbers are of no other type */
    if (!has_pairs<C>(bias, keys)) {
        scale_scores<C>(s, scale);
        for_each_number<C>(s, bias, keys, row_of,
                           [](float &score, float number) { score += number; });
    } else if (bias.dtype == FLASH_DTYPE_FP16) {
        add_pairs<C, FLASH_DTYPE_FP16>(s, bias, keys, scale, row_of);
    } else if (bias.dtype == FLASH_DTYPE_BF16) {
        add_pairs<C, FLASH_DTYPE_BF16>(s, bias, keys, scale, row_of);
    } else {
        add_pairs<C, FLASH_DTYPE_FP32>(s, bias, keys, scale, row_of);
    }
}

/* ---- Both ---- */

/* Says whether the mask has columns for keys of the block. */
template <flash_config_t C>
static __device__ __forceinline__ bool mask_covers(const flash_bias_t &bias,
                                                   const bias_keys_t &keys) {
    return bias.mask != nullptr && keys.column > -C.B_c && keys.column < bias.n_keys;
}

/* Adds the bias; scores have the unit after it then. row_of(half): the bias's row of each of the
 * thread's two rows. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void add_bias(score_tile<C> &s, const flash_bias_t &bias,
                                                const bias_keys_t &keys, const score_units<C> &unit,
                                                const R &row_of) {
    const bool has_alibi = bias.alibi_slopes != nullptr;
    const bool has_mask = mask_covers<C>(bias, keys);
    const bool has_numbers = has_mask && bias.kind == FLASH_MASK_ADD;
    const bool scales = converts<C> || sm90_bias_adds(bias);
    score_scale_t scale = {log2_unit(unit, 0) * ln_2, log2_unit(unit, 1) * ln_2};
    if (has_alibi) {
        add_alibi<C>(s, keys, scale, row_of);
        scale = {1.0f, 1.0f};
    } else if (scales && !has_numbers) {
        scale_scores<C>(s, scale);
    }
    if (has_numbers)
        add_numbers<C>(s, bias, keys, scale, row_of);
    else if (has_mask)
        hide_by_bits<C>(s, bias, keys, row_of);
}

/* ---- The reference maximum of scores with numbers ---- */

/* Rows whose maximum is lower have it raised to this: it stays finite in the exponent of 2, and
 * rows may have nothing but the least finite number. */
constexpr float least_max = -0x1p127f;

/* Returns the maximum of a row; NaN if one of its scores is NaN. */
template <flash_config_t C>
static __device__ __forceinline__ float row_max_nan(const score_tile<C> &s, int half) {
    float x = max_nan(s.s[2 * half], s.s[2 * half + 1]);
#pragma unroll
    for (int i = 4; i < score_registers<C>; i += 4)
        x = max_nan(x, max_nan(s.s[i + 2 * half], s.s[i + 2 * half + 1]));
    return quad_max_nan(x);
}

static __device__ __forceinline__ bool needs_repair(float max) {
    return !(max >= least_max) && max != -INFINITY;
}

/* Hides the keys that numbers of -infinity hide, whatever their scores are, and raises what is
 * finite to least_max. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void repair_scores(score_tile<C> &s, const flash_bias_t &bias,
                                                     const bias_keys_t &keys, const R &row_of) {
    if (mask_covers<C>(bias, keys))
        for_each_number<C>(s, bias, keys, row_of,
                           [](float &score, float number) { hide_if(number == -INFINITY, score); });
#pragma unroll
    for (int i = 0; i < score_registers<C>; ++i)
        raise_finite(s.s[i], least_max);
}

/* Raises the reference maxima to those of a block whose scores have their bias, with what numbers
 * still need. That is seldom anything. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ rescale_t
raise_biased_max(softmax_state_t &state, score_tile<C> &s, const flash_bias_t &bias,
                 const bias_keys_t &keys, const softmax_units<C> &unit, const R &row_of) {
    float max[2] = {row_max_nan<C>(s, 0), row_max_nan<C>(s, 1)};
    rescale_t past;
    if (bias.mask != nullptr && bias.kind == FLASH_MASK_ADD &&
        __any_sync(0xffffffffu, needs_repair(max[0]) || needs_repair(max[1]))) {
        repair_scores<C>(s, bias, keys, row_of);
        max[0] = row_max<C>(s, 0);
        max[1] = row_max<C>(s, 1);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
        past.factor[half] = raise_row_max(state, half, max[half], log2_unit(unit, half));
    return past;
}

/* Rescales O if a reference maximum of the warp has changed. With ALiBi the keys that come first
 * mostly have the largest scores. */
template <flash_config_t C>
static __device__ __forceinline__ void rescale_output_if_needed(output_tile<C> &o,
                                                                const rescale_t &past) {
    if (!has_bias<C> || __any_sync(0xffffffffu, past.factor[0] != 1.0f || past.factor[1] != 1.0f))
        rescale_output<C>(o, past);
}

#endif
