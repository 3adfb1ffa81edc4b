/*
 * This file says which tile a block of a backward kernel computes, and which rows pass by it.
 *
 * Tiles are numbered section by section, and in a section the longest tile of each head comes
 * first (schedule/order.cuh draws the same for the forward). The device starts blocks in the order
 * of their numbers, as others end.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_TILES_CUH
#define FLASH_KERNELS_SM90_BACKWARD_TILES_CUH

#include "common/ptx/opaque.cuh"
#include "common/sequence.h"
#include "sm90/backward/derive.cuh"
#include "sm90/ptx/tma.cuh"

enum { FIRST_QUERY_STEP = 128 /* so that blocks of queries lie in kept dS as it is stored */ };

typedef struct gradient_tile {
    int32_t batch_index;
    int32_t head;  /* query head, or K/V head */
    int32_t begin; /* its first row, in its sequence */
    /* Queries that pass by are counted from this one, a multiple of FIRST_QUERY_STEP: those before
     * it see no key. What they have, which may be NaN, is not even loaded. */
    int32_t first_query;
    bool is_masked;
    flash_sequence_t sequence;
} gradient_tile_t;

/* The steps that pass by: blocks of step_rows from `begin` up to `end`. */
typedef struct gradient_steps {
    int32_t begin;
    int32_t end;
    int32_t whole_begin; /* blocks that each row of the tile sees whole, and is seen by */
    int32_t whole_end;
} gradient_steps_t;

/* Returns what flash_visible_keys() or flash_seeing_queries() returns, but for a range of none,
 * whose end may be before its begin; with 32 bits, since the larger kernels do not have the
 * registers for more. From row to row, both ends move right or stay here, too. */
template <bool OF_QUERY>
static __device__ __forceinline__ flash_range_t seen_through_window(const flash_params_t &p,
                                                                    const flash_sequence_t &s,
                                                                    int32_t row) {
    const int32_t shift = OF_QUERY ? s.len_k - s.len_q : s.len_q - s.len_k;
    const int32_t place = row + shift, others = OF_QUERY ? s.len_k : s.len_q;
    const int32_t before = OF_QUERY ? p.window_left : p.window_right;
    const int32_t after = OF_QUERY ? p.window_right : p.window_left;
    int32_t begin = before < 0 || before >= place ? 0 : min(place - before, others);
    int32_t end = after < 0 || after >= others - 1 - place ? others : max(place + after + 1, 0);
    const int32_t key = OF_QUERY ? place : row, to_other = OF_QUERY ? 0 : shift;
    if (p.attention_chunk > 0) {
        const int32_t chunk = flash_divide(max(key, 0), p.by_attention_chunk) * p.attention_chunk;
        begin = max(begin, chunk + to_other);
        if (key < 0)
            end = 0;
        else if (end - to_other - chunk > p.attention_chunk)
            end = max(chunk + p.attention_chunk + to_other, 0);
    }
    return flash_range_t{begin, end};
}

/* Says whether some rows are hidden from some others. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_masked(const flash_params_t &p) {
    if constexpr (has_window<C>)
        return p.window_right >= 0 || p.window_left >= 0 || p.attention_chunk > 0;
    else
        return has_mask<C> && p.window_right >= 0;
}

/* Returns the first query that passes by where there is a mask. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t find_first_query(const flash_params_t &p,
                                                           const flash_sequence_t &s) {
    const int32_t first = has_window<C>
                              ? min(max(seen_through_window<false>(p, s, 0).begin, 0), s.len_q)
                              : max(s.len_q - s.len_k, 0);
    return first / FIRST_QUERY_STEP * FIRST_QUERY_STEP;
}

/* Returns the block's tile. That is cheap enough to be repeated, so that it need not be kept in
 * registers; hence the number that the compiler cannot know. */
template <flash_config_t C>
static __device__ __forceinline__ gradient_tile_t
find_gradient_tile(const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const uint32_t number = opaque(blockIdx.x);
    const uint32_t tiles = params.schedule.head_tiles;
    const flash_section_t &s = params.gradients.section;
    const uint32_t heads = (uint32_t)sm90_backward_heads(&C, &p, s.n_heads);
    const uint32_t section = number / (params.schedule.section_heads * tiles);
    const uint32_t first_head = section * params.schedule.section_heads;
    const uint32_t width =
        min(params.schedule.section_heads, heads * (uint32_t)s.n_batch - first_head);
    const uint32_t rest = number - first_head * tiles;
    const uint32_t head = first_head + rest % width, place = rest / width;
    gradient_tile_t tile;
    tile.batch_index = s.first_batch + (int32_t)(head / heads);
    tile.head = sm90_backward_heads(&C, &p, s.first_head) + (int32_t)(head % heads);
    tile.begin = (int32_t)(has_mask<C> && writes_dq<C> ? tiles - 1 - place : place) * still_rows<C>;
    if constexpr (has_varlen<C>)
        tile.sequence = flash_sequence(&p, tile.batch_index);
    else
        tile.sequence = flash_sequence_t{0, 0, p.seqlen_q, p.seqlen_k};
    tile.is_masked = is_masked<C>(p);
    tile.first_query = 0;
    if (!writes_dq<C> && tile.is_masked)
        tile.first_query = find_first_query<C>(p, tile.sequence);
    return tile;
}

/* Says whether the tile has rows of its sequence. */
template <flash_config_t C>
static __device__ __forceinline__ bool has_rows(const gradient_tile_t &tile) {
    return !has_varlen<C> ||
           tile.begin < (writes_dq<C> ? tile.sequence.len_q : tile.sequence.len_k);
}

/* Returns how many keys stand before the first query that passes by, without its own. */
static __device__ __forceinline__ int32_t keys_before(const gradient_tile_t &tile) {
    return tile.sequence.len_k - tile.sequence.len_q + tile.first_query;
}

/* Returns the keys that a query sees, or the queries that see a key, counted from the first one
 * that passes by. */
template <flash_config_t C>
static __device__ __forceinline__ flash_range_t seen_by(const flash_params_t &p,
                                                        const gradient_tile_t &tile, int32_t row) {
    const flash_sequence_t &s = tile.sequence;
    const int32_t shift = s.len_k - s.len_q, first = tile.first_query;
    if constexpr (has_window<C>) {
        const flash_range_t range = seen_through_window<writes_dq<C>>(p, s, row);
        return flash_range_t{range.begin - first, range.end - first};
    } else if constexpr (writes_dq<C>) {
        return flash_range_t{0, tile.is_masked ? min(max(row + shift + 1, 0), s.len_k) : s.len_k};
    } else {
        const int32_t begin = tile.is_masked ? min(max(row - shift, 0), s.len_q) : 0;
        return flash_range_t{max(begin - first, 0), s.len_q - first};
    }
}

/* Finds the steps of `rows` rows from number `first` of the tile on. From row to row both ends of
 * what they see move right or stay. Queries beyond the end need no mask: what they add is 0. */
template <flash_config_t C>
static __device__ __forceinline__ gradient_steps_t find_steps(const flash_params_t &p,
                                                              const gradient_tile_t &tile,
                                                              int32_t first, int32_t rows) {
    const int32_t length = writes_dq<C> ? tile.sequence.len_q : tile.sequence.len_k;
    const int32_t row = tile.begin + first;
    const flash_range_t a = seen_by<C>(p, tile, row);
    const flash_range_t b = seen_by<C>(p, tile, min(row + rows, length) - 1);
    gradient_steps_t steps;
    steps.begin = a.begin / step_rows<C>;
    steps.end = b.end > a.begin ? (b.end + step_rows<C> - 1) / step_rows<C> : steps.begin;
    steps.whole_begin = (b.begin + step_rows<C> - 1) / step_rows<C>;
    steps.whole_end =
        writes_dq<C> || has_window<C> ? a.end / step_rows<C> : max(steps.end, steps.whole_begin);
    return steps;
}

/* Says whether a mask cuts the block, or the end of the keys does. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_cut(const gradient_steps_t &steps, int32_t block) {
    if constexpr (has_window<C>)
        return block < steps.whole_begin || block >= steps.whole_end;
    else
        return writes_dq<C> ? block >= steps.whole_end : block < steps.whole_begin;
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
