/*
 * A mask of bits hides the keys whose bit is not set. A thread loads words, and gathers the bits of
 * its own columns.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_MASK_BITS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_MASK_BITS_CUH

#include "sm90/ptx/predicated.cuh"
#include "sm90/softmax/bias_keys.cuh"
#include "sm90/softmax/mask.cuh"

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

#endif
