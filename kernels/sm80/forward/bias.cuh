/*
 * Kernels with bias add ALiBi and masks to the scores of a block. Which of them a call has, and of
 * which kind, is asked once for a block, since a score has only a few operations of its own.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_BIAS_CUH
#define FLASH_KERNELS_SM80_FORWARD_BIAS_CUH

#include "common/bias.cuh"
#include "common/block_bits.cuh"
#include "common/page_holes.cuh"
#include "sm80/forward/products.cuh"
#include "sm80/forward/rows.cuh"
#include "sm80/forward/softmax.cuh"
#include "sm80/forward/tile.cuh"

/* Returns the bias's row of a row of the tile; those past its end have that of the last one.
 * OF_BLOCKS: the mask is of blocks. */
template <flash_config_t C, bool OF_BLOCKS = false>
static __device__ __forceinline__ flash_bias_row_t find_bias_row(const flash_params_t &params,
                                                                 const query_tile_t &tile,
                                                                 int tile_row) {
    const int32_t row = tile_row < tile.rows ? tile_row : tile.rows - 1;
    return flash_bias_row_of(&params, &tile.sequence, tile.batch_index, tile.head,
                             (int64_t)tile.row_begin + row, OF_BLOCKS);
}

/* Calls f(score, row, key) for each of the thread's scores. */
template <flash_config_t C, typename F>
static __device__ __forceinline__ void
for_each_score(score_tile<C> &s, const flash_params_t &params, const query_tile_t &tile,
               int32_t block, const F &f) {
    const int32_t first_key = block * C.B_c + tile_column();
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_bias_row_t row = find_bias_row<C>(params, tile, tile_row<C>(m, half));
#pragma unroll
            for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    f(s.s[m][n][2 * half + i], row, first_key + n * 8 + i);
        }
}

/* Distances are exact below 2^24 keys. */
template <flash_config_t C>
static __device__ __forceinline__ void add_alibi(score_tile<C> &s, const flash_params_t &params,
                                                 const query_tile_t &tile, int32_t block) {
    for_each_score<C>(s, params, tile, block,
                      [](float &score, const flash_bias_row_t &row, int32_t key) {
                          const float distance = (float)(key - row.diagonal);
                          score = fmaf(-log2_e * row.slope, fabsf(distance), score);
                      });
}

template <flash_config_t C>
static __device__ __forceinline__ void hide_by_bits(score_tile<C> &s, const flash_params_t &params,
                                                    const query_tile_t &tile, int32_t block) {
    const flash_bias_t &bias = params.bias;
    for_each_score<C>(s, params, tile, block,
                      [&](float &score, const flash_bias_row_t &row, int32_t key) {
                          const uint32_t column = (uint32_t)(key - row.first_key);
                          if (column >= (uint32_t)bias.n_keys)
                              return;
                          const uint32_t *words = static_cast<const uint32_t *>(bias.mask) + row.at;
                          if (!(words[column / 32] >> column % 32 & 1))
                              score = -INFINITY;
                      });
}

template <flash_config_t C>
static __device__ __forceinline__ void hide_by_blocks(score_tile<C> &s,
                                                      const flash_params_t &params,
                                                      const query_tile_t &tile, int32_t block) {
    constexpr int tiles_at_once = 32 / 8;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_bias_row_t row = find_bias_row<C, true>(params, tile, tile_row<C>(m, half));
#pragma unroll
            for (int first = 0; first < key_tiles<C>; first += tiles_at_once) {
                const int32_t key = block * C.B_c + first * 8;
                const uint32_t shown =
                    shown_by_blocks(params.bias, row.at, key - row.first_key) >> tile_column();
#pragma unroll
                for (int i = 0; i < tiles_at_once * 2; ++i)
                    if (first + i / 2 < key_tiles<C> && !(shown >> (i / 2 * 8 + i % 2) & 1))
                        s.s[m][first + i / 2][2 * half + i % 2] = -INFINITY;
            }
        }
}

/* Returns a score with a number of the mask; -infinity hides the key, whatever its score is. */
template <int DTYPE, bool HAS_FACTORS>
static __device__ __forceinline__ float with_number(float score, float number, float factor) {
    if (number == -INFINITY)
        return number;
    if constexpr (HAS_FACTORS)
        return score + log2_bias(flash_scaled_number(number, factor));
    else if constexpr (DTYPE == FLASH_DTYPE_FP16) /* no number is large */
        return fmaf(number, log2_e, score);
    else
        return score + log2_bias(number);
}

template <flash_config_t C, int DTYPE, bool HAS_FACTORS>
static __device__ __forceinline__ void add_numbers(score_tile<C> &s, const flash_params_t &params,
                                                   const query_tile_t &tile, int32_t block) {
    const flash_bias_t &bias = params.bias;
    for_each_score<C>(s, params, tile, block,
                      [&](float &score, const flash_bias_row_t &row, int32_t key) {
                          const int32_t column = key - row.first_key;
                          if ((uint32_t)column >= (uint32_t)bias.n_keys)
                              return;
                          const int64_t at = row.at + column * bias.stride_key;
                          score = with_number<DTYPE, HAS_FACTORS>(
                              score, dtype_load<DTYPE>(bias.mask, at), row.factor);
                      });
}

template <flash_config_t C, bool HAS_FACTORS>
static __device__ __forceinline__ void
add_numbers_of_type(score_tile<C> &s, const flash_params_t &params, const query_tile_t &tile,
                    int32_t block) {
    DTYPES_KNOWN(7); /* numbers are of no other type */
    if (params.bias.dtype == FLASH_DTYPE_FP16)
        add_numbers<C, FLASH_DTYPE_FP16, HAS_FACTORS>(s, params, tile, block);
    else if (params.bias.dtype == FLASH_DTYPE_BF16)
        add_numbers<C, FLASH_DTYPE_BF16, HAS_FACTORS>(s, params, tile, block);
    else
        add_numbers<C, FLASH_DTYPE_FP32, HAS_FACTORS>(s, params, tile, block);
}

template <flash_config_t C>
static __device__ __forceinline__ void add_mask(score_tile<C> &s, const flash_params_t &params,
                                                const query_tile_t &tile, int32_t block) {
    if (params.bias.kind == FLASH_MASK_BITS)
        hide_by_bits<C>(s, params, tile, block);
    else if (params.bias.kind == FLASH_MASK_BLOCKS)
        hide_by_blocks<C>(s, params, tile, block);
    else if (params.bias.head_scale == NULL)
        add_numbers_of_type<C, false>(s, params, tile, block);
    else
        add_numbers_of_type<C, true>(s, params, tile, block);
}

/* Hides the keys of the block that lie in holes of the page table. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_holes(score_tile<C> &s, const flash_params_t &params,
                                                  const query_tile_t &tile, int32_t block) {
    const hole_ids_t ids = find_hole_ids(params, tile.sequence, tile.batch_index);
#pragma unroll
    for (int first = 0; first < C.B_c; first += 32) {
        const uint32_t hidden =
            find_holes(ids, block * C.B_c + first,
                       [&](int32_t key) { return flash_kv_page_of(&params.pages, key); }) >>
            tile_column();
#pragma unroll
        for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
            for (int n = first / 8; n < key_tiles<C> && n < first / 8 + 4; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (hidden >> (n * 8 - first + i % 2) & 1)
                        s.s[m][n][i] = -INFINITY;
    }
}

/* Adds the bias; scores are in the exponent of 2 then. mask_changes: the mask is to be added. Keys
 * in holes are hidden. */
template <flash_config_t C>
static __device__ __forceinline__ void add_bias(score_tile<C> &s, const flash_params_t &params,
                                                const query_tile_t &tile, int32_t block,
                                                bool mask_changes, float log2_unit) {
    scale_scores<C>(s, log2_unit);
    if (params.bias.alibi_slopes)
        add_alibi<C>(s, params, tile, block);
    if (mask_changes)
        add_mask<C>(s, params, tile, block);
    if constexpr (hides_holes<C>)
        if (params.bias.has_page_holes)
            hide_holes<C>(s, params, tile, block);
}

#endif
