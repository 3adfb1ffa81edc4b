/*
 * A mask of blocks (FLASH_MASK_BLOCKS) hides a thread's keys in runs, which end where its blocks
 * do. The loop over them goes as far in all lanes.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_MASK_OF_BLOCKS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_MASK_OF_BLOCKS_CUH

#include "common/block_bits.cuh"
#include "sm90/softmax/bias_keys.cuh"
#include "sm90/softmax/mask.cuh"

/* Returns bits that are set for those of the thread's columns that a row shows. at: where the row
 * begins, in words; column: of the mask, at the block's first key. */
template <flash_config_t C>
static __device__ __forceinline__ column_bits<C.B_c / 4>
columns_of_shown_blocks(const flash_bias_t &bias, int64_t at, int32_t column) {
    constexpr int columns = C.B_c / 4;
    const uint32_t step = (uint32_t)bias.block.keys, first = (uint32_t)max(column, 0);
    const uint32_t last = (uint32_t)min(bias.n_keys - column, C.B_c);
    uint32_t block = first / step, begin = first - (uint32_t)column;
    uint32_t end = (block + 1) * step - (uint32_t)column;
    auto seen = first_columns<columns>(columns);
#pragma unroll 1
    for (; begin < last; begin = end, end += step, ++block) {
        const auto of_block = columns_between<C>((int32_t)begin, (int32_t)min(end, last));
        const bool shown = shows_block(bias, at, block);
#pragma unroll
        for (int i = 0; i < (columns + 31) / 32; ++i)
            seen.words[i] &= shown ? ~0u : ~of_block.words[i];
    }
    return seen;
}

template <flash_config_t C, typename R>
static __device__ __forceinline__ void hide_by_blocks(score_tile<C> &s, const flash_bias_t &bias,
                                                      const bias_keys_t &keys, const R &row_of) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        hide_columns<C>(
            s, half, columns_of_shown_blocks<C>(bias, row_of(half, true).at, (int32_t)keys.column));
}

#endif
