/*
 * This file says which tile a block of a backward kernel computes, and which rows pass by it.
 *
 * Tiles are numbered section by section, and in a section the longest tile of each head comes
 * first (schedule/order.cuh draws the same for the forward). The device starts blocks in the order
 * of their numbers, as others end.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_TILES_CUH
#define FLASH_KERNELS_SM90_BACKWARD_TILES_CUH

#include "common/sequence.h"
#include "sm90/backward/derive.cuh"
#include "sm90/ptx/tma.cuh"

typedef struct gradient_tile {
    int32_t batch_index;
    int32_t head;  /* query head, or K/V head */
    int32_t begin; /* its first row, in its sequence */
    /* Queries that pass by are counted from this one: those before it see no key. What they have,
     * which may be NaN, is not even loaded. */
    int32_t first_query;
    bool is_causal;
    flash_sequence_t sequence;
} gradient_tile_t;

/* The steps that pass by: blocks of step_rows from `begin` up to `end`. */
typedef struct gradient_steps {
    int32_t begin;
    int32_t end;
    int32_t whole_begin; /* blocks that each row of the tile sees whole, and is seen by */
    int32_t whole_end;
} gradient_steps_t;

/* Returns the block's tile. */
template <flash_config_t C>
static __device__ __forceinline__ gradient_tile_t
find_gradient_tile(const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const uint32_t number = blockIdx.x;
    const uint32_t tiles = params.schedule.head_tiles;
    const uint32_t heads = (uint32_t)sm90_backward_heads(&C, &p);
    const uint32_t section = number / (params.schedule.section_heads * tiles);
    const uint32_t first_head = section * params.schedule.section_heads;
    const uint32_t width =
        min(params.schedule.section_heads, heads * (uint32_t)p.batch - first_head);
    const uint32_t rest = number - first_head * tiles;
    const uint32_t head = first_head + rest % width, place = rest / width;
    gradient_tile_t tile;
    tile.batch_index = (int32_t)(head / heads);
    tile.head = (int32_t)(head % heads);
    tile.begin = (int32_t)(has_mask<C> && writes_dq<C> ? tiles - 1 - place : place) * still_rows<C>;
    if constexpr (has_varlen<C>)
        tile.sequence = flash_sequence(&p, tile.batch_index);
    else
        tile.sequence = flash_sequence_t{0, 0, p.seqlen_q, p.seqlen_k};
    tile.is_causal = has_mask<C> && p.window_right >= 0;
    tile.first_query =
        tile.is_causal && !writes_dq<C> ? max(tile.sequence.len_q - tile.sequence.len_k, 0) : 0;
    return tile;
}

/* Says whether the tile has rows of its sequence. */
template <flash_config_t C>
static __device__ __forceinline__ bool has_rows(const gradient_tile_t &tile) {
    return !has_varlen<C> ||
           tile.begin < (writes_dq<C> ? tile.sequence.len_q : tile.sequence.len_k);
}

/* Finds the blocks of keys that `rows` queries from `first` on see. */
template <flash_config_t C>
static __device__ __forceinline__ gradient_steps_t find_keys(const gradient_tile_t &tile,
                                                             int32_t first, int32_t rows) {
    const flash_sequence_t &s = tile.sequence;
    const int32_t shift = s.len_k - s.len_q;
    const int32_t last = min(first + rows, s.len_q) - 1;
    const int32_t end = tile.is_causal ? min(s.len_k, max(last + shift + 1, 0)) : s.len_k;
    const int32_t whole_end = tile.is_causal ? min(s.len_k, max(first + shift + 1, 0)) : s.len_k;
    return gradient_steps_t{0, (end + step_rows<C> - 1) / step_rows<C>, 0,
                            whole_end / step_rows<C>};
}

/* Returns how many keys stand before the first query that passes by, without its own. */
static __device__ __forceinline__ int32_t keys_before(const gradient_tile_t &tile) {
    return tile.sequence.len_k - tile.sequence.len_q + tile.first_query;
}

/* Finds the blocks of queries that see any of `rows` keys from `first` on. Queries beyond the end
 * need no mask: P is 0 there. */
template <flash_config_t C>
static __device__ __forceinline__ gradient_steps_t find_queries(const gradient_tile_t &tile,
                                                                int32_t first, int32_t rows) {
    const int32_t queries = tile.sequence.len_q - tile.first_query, before = keys_before(tile);
    const int32_t end = (queries + step_rows<C> - 1) / step_rows<C>;
    const int32_t begin = tile.is_causal ? max(first - before, 0) / step_rows<C> : 0;
    const int32_t whole =
        tile.is_causal ? (max(first + rows - 1 - before, 0) + step_rows<C> - 1) / step_rows<C> : 0;
    return gradient_steps_t{begin, end, whole, end};
}

/* Finds the steps of `rows` rows from number `first` of the tile on. */
template <flash_config_t C>
static __device__ __forceinline__ gradient_steps_t find_steps(const gradient_tile_t &tile,
                                                              int32_t first, int32_t rows) {
    if constexpr (writes_dq<C>)
        return find_keys<C>(tile, tile.begin + first, rows);
    else
        return find_queries<C>(tile, tile.begin + first, rows);
}

/* Returns the place of rows in a tensor for TMA: `end` is the sequence's length, `first` where it
 * begins. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t tensor_box(const gradient_tile_t &tile, int32_t head,
                                                       int32_t row, int64_t first, int32_t end,
                                                       int32_t entry_tokens) {
    if constexpr (has_varlen<C>)
        return tma_box_t{0, SM90_RAGGED_END - end + row, head,
                         (int32_t)(tile.batch_index * entry_tokens + first + end)};
    else
        return tma_box_t{0, row, head, tile.batch_index};
}

#endif
