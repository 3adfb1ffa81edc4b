/*
 * This file finds the keys that each row of a block sees. With t = lane % 4 a lane holds scores of
 * rows 2t and 2t + 1 of each group of eight rows.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_ROWS_CUH
#define FLASH_KERNELS_SM80_DECODE_ROWS_CUH

#include "common/decode/rows.cuh"
#include "sm80/decode/derive.cuh"

/* The keys that each of the lane's rows sees, and those that all rows of the block see. */
template <flash_config_t C> struct row_masks {
    flash_range_t row[row_groups<C>][2];
    flash_range_t whole;
};

template <flash_config_t C>
static __device__ __forceinline__ row_masks<C> make_row_masks(const sm80_decode_params_t &params,
                                                              const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const flash_sequence_t &s = block.sequence;
    const int32_t first = find_row(params, block.row_begin).query;
    const int32_t last = find_row(params, block.row_begin + block.rows - 1).query;
    row_masks<C> masks;
    masks.whole = {flash_visible_keys(&p, &s, last).begin, flash_visible_keys(&p, &s, first).end};
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int32_t row = min(n * 8 + (int)threadIdx.x % 4 * 2 + j, block.rows - 1);
            const int32_t query = find_row(params, block.row_begin + row).query;
            masks.row[n][j] = flash_visible_keys(&p, &s, query);
        }
    return masks;
}

template <flash_config_t C>
static __device__ __forceinline__ bool sees(const row_masks<C> &masks, int n, int j, int32_t key) {
    return key >= masks.row[n][j].begin && key < masks.row[n][j].end;
}

/* Says whether every row sees all keys of the step that begins with this one. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_whole_step(const row_masks<C> &masks, int32_t key) {
    return key >= masks.whole.begin && key + C.B_c <= masks.whole.end;
}

#endif
