/*
 * Under a mask the scores of keys that a row does not see become -infinity, exactly.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_MASK_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_MASK_CUH

#include "sm90/fragments.cuh"
#include "sm90/ptx/bit_mask.cuh"
#include "sm90/tile_rows.cuh"

/* The keys of a block that the tile's first row sees are [begin, end), counted from the block's
 * first key, as far as they exist. Both ends move on by one with each row. Chunks may hide more. */
typedef struct block_mask {
    int32_t begin;
    int32_t end;
    int32_t existing;
} block_mask_t;

/* Clamps a key to beyond every block either way, with room for the rows of a tile. */
static __device__ __forceinline__ int32_t clamp_key(int64_t key) {
    constexpr int64_t far = 1 << 20;
    return (int32_t)max(min(key, far), -far);
}

/* Computes the same as flash_window_keys(), only from uniform values. */
template <flash_config_t C>
static __device__ __forceinline__ block_mask_t find_block_mask(const flash_params_t &p,
                                                               const tile_of<C> &tile,
                                                               int32_t block) {
    const flash_sequence_t sequence = sequence_of<C>(p, tile);
    const int64_t existing = sequence.len_k - (int64_t)block * C.B_c;
    const int64_t diagonal = existing + tile.row_begin - sequence.len_q + diagonal_offset<C>(p);
    return block_mask_t{p.window_left < 0 ? INT32_MIN / 2 : clamp_key(diagonal - p.window_left),
                        p.window_right < 0 ? INT32_MAX / 2
                                           : clamp_key(diagonal + p.window_right + 1),
                        clamp_key(existing)};
}

/* Counts those of the thread's columns, two in eight, that come before a key of the block. */
static __device__ __forceinline__ int32_t columns_before(int32_t key) {
    const int32_t rest = max(key - tile_column(), 0);
    return rest / 8 * 2 + min(rest % 8, 2);
}

/* A bit stands for each of the thread's columns of a row: ptxas turns eight at a time into
 * predicates. */
template <int COLUMNS> struct column_bits { uint32_t words[(COLUMNS + 31) / 32]; };

/* Returns bits that are set for the first n of the thread's columns. */
template <int COLUMNS>
static __device__ __forceinline__ column_bits<COLUMNS> first_columns(int32_t n) {
    column_bits<COLUMNS> bits;
#pragma unroll
    for (int i = 0; i < (COLUMNS + 31) / 32; ++i)
        bits.words[i] = low_bits(max(n - 32 * i, 0));
    return bits;
}

/* Hides the columns of a row of which bits are not set. half: the row's number among the thread's.
 */
template <flash_config_t C>
static __device__ __forceinline__ void hide_columns(score_tile<C> &s, int half,
                                                    const column_bits<C.B_c / 4> &seen) {
#pragma unroll
    for (int i = 0; i < C.B_c / 4; ++i)
        if (!(seen.words[i / 32] >> i % 32 & 1))
            s.s[i / 2 * 4 + 2 * half + i % 2] = -INFINITY;
}

/* Returns bits that are set for the thread's columns in [begin, end), keys of the block. */
template <flash_config_t C>
static __device__ __forceinline__ column_bits<C.B_c / 4> columns_between(int32_t begin,
                                                                         int32_t end) {
    constexpr int columns = C.B_c / 4;
    auto between = first_columns<columns>(columns_before(end));
    const auto left = first_columns<columns>(columns_before(begin));
#pragma unroll
    for (int i = 0; i < (columns + 31) / 32; ++i)
        between.words[i] &= ~left.words[i];
    return between;
}

/* Hides the keys outside the chunks of the rows. That is a step of its own, because together with
 * the window it takes registers that the larger kernels do not have. Rows past the last query are
 * in its chunk: a row that sees no key of these blocks would have no reference for the others. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_other_chunks(score_tile<C> &s,
                                                         const flash_params_t &params,
                                                         const tile_of<C> &tile, int32_t block) {
    const flash_sequence_t sequence = sequence_of<C>(params, tile);
    const int32_t shift = diagonal_offset<C>(params);
    const int32_t first_place = tile.row_begin + sequence.len_k - sequence.len_q + shift;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int32_t place =
            min(first_place + row_query<C>(params, half), sequence.len_k - 1 + shift);
        const flash_range_t chunk = flash_attention_chunk_at(&params, place);
        hide_columns<C>(s, half,
                        columns_between<C>(chunk.begin - block * C.B_c, chunk.end - block * C.B_c));
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void mask_scores(score_tile<C> &s, const flash_params_t &params,
                                                   const tile_of<C> &tile, int32_t block) {
    constexpr int columns = C.B_c / 4;
    const block_mask_t mask = find_block_mask<C>(params, tile, block);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int32_t row = row_query<C>(params, half);
        const int32_t end = min(mask.end + row, mask.existing);
        if constexpr (has_window<C>)
            hide_columns<C>(s, half, columns_between<C>(mask.begin + row, end));
        else
            hide_columns<C>(s, half, first_columns<columns>(columns_before(end)));
    }
    if constexpr (has_window<C>)
        if (params.attention_chunk > 0)
            hide_other_chunks<C>(s, params, tile, block);
}

#endif
