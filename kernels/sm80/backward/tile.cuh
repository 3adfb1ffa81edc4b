/*
 * A thread block computes one tile: B_r queries of a head, against the blocks of keys that any of
 * them sees, or B_c keys of a K/V head, against the blocks of queries that see any of them, of each
 * query head of the group in turn.
 *
 * Heads are numbered head first, then batch entry. Under a mask tiles of queries run from the last,
 * which sees most keys, and tiles of keys from the first, in the order of tile_order.h.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_TILE_CUH
#define FLASH_KERNELS_SM80_BACKWARD_TILE_CUH

#include "common/gradients.h"
#include "common/sequence.h"
#include "sm80/backward/derive.cuh"
#include "sm80/ptx/special_registers.cuh"
#include "sm80/tile_order.h"

typedef struct gradient_tile {
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head;        /* of Q, or of K and V if rows are keys */
    int32_t row_begin;   /* in the sequence */
    int32_t rows;        /* fewer at the end of the sequence, <= 0 past it */
    int32_t block_begin; /* blocks of step_rows columns; empty when begin >= end */
    int32_t block_end;
    int32_t whole_begin; /* blocks whose columns all belong to each row */
    int32_t whole_end;
} gradient_tile_t;

template <flash_config_t C>
static __device__ __forceinline__ flash_sequence_t tile_sequence(const flash_params_t &p,
                                                                 int batch_index) {
    if constexpr (has_varlen<C>)
        return flash_sequence(&p, batch_index);
    else
        return flash_sequence_t{0, 0, p.seqlen_q, p.seqlen_k};
}

/* Returns the tokens of the sequence that are rows, or columns. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t count_rows(const flash_sequence_t &s) {
    return rows_are_keys<C> ? s.len_k : s.len_q;
}

template <flash_config_t C>
static __device__ __forceinline__ int32_t count_columns(const flash_sequence_t &s) {
    return rows_are_keys<C> ? s.len_q : s.len_k;
}

/* Returns the columns that belong to a row: keys that it sees, or queries that see it. */
template <flash_config_t C>
static __device__ __forceinline__ flash_range_t columns_of_row(const flash_params_t &p,
                                                               const flash_sequence_t &s,
                                                               int32_t row) {
    if constexpr (!has_mask<C>)
        return flash_range_t{0, count_columns<C>(s)};
    else if constexpr (rows_are_keys<C>)
        return flash_seeing_queries(&p, &s, row);
    else if constexpr (has_window<C>)
        return flash_visible_keys(&p, &s, row);
    else
        return flash_window_keys(&p, &s, row);
}

/* Finds the blocks of a tile. Both ends of the columns of a row move right from row to row, so the
 * first row has the tile's first column, and the last row its last. */
template <flash_config_t C>
static __device__ __forceinline__ void find_blocks(const flash_params_t &p, gradient_tile_t &tile) {
    const flash_range_t first = columns_of_row<C>(p, tile.sequence, tile.row_begin);
    const flash_range_t last = columns_of_row<C>(p, tile.sequence, tile.row_begin + tile.rows - 1);
    tile.block_begin = first.begin / step_rows<C>;
    tile.block_end = (int32_t)(((int64_t)last.end + step_rows<C> - 1) / step_rows<C>);
    if (last.end <= first.begin)
        tile.block_end = tile.block_begin;
    tile.whole_begin = (int32_t)(((int64_t)last.begin + step_rows<C> - 1) / step_rows<C>);
    tile.whole_end = first.end / step_rows<C>;
}

/* Returns the number of heads, of Q or of K and V, of a batch entry of the section. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t heads_of_section(const flash_backward_params_t &params) {
    const uint32_t n_heads = (uint32_t)params.gradients.section.n_heads;
    return rows_are_keys<C> ? n_heads : n_heads * (uint32_t)params.forward.group;
}

/* Finds the tile of this thread block. That is cheap enough to be repeated after the main loop,
 * which then need not keep the tile in registers; hence the volatile read of the block's number. */
template <flash_config_t C>
static __device__ __forceinline__ gradient_tile_t find_tile(const flash_backward_params_t &params) {
    const flash_params_t &p = params.forward;
    const flash_section_t &section = params.gradients.section;
    const uint32_t tiles = (uint32_t)sm80_backward_tiles(&C, &p);
    const uint32_t n_heads = heads_of_section<C>(params);
    const sm80_tile_number_t number =
        sm80_tile_of_block(block_number(), tiles, n_heads * (uint32_t)section.n_batch);
    gradient_tile_t tile;
    tile.batch_index = section.first_batch + (int32_t)(number.head / n_heads);
    tile.head =
        section.first_head * (rows_are_keys<C> ? 1 : p.group) + (int32_t)(number.head % n_heads);
    tile.sequence = tile_sequence<C>(p, tile.batch_index);
    tile.row_begin = (int32_t)((has_mask<C> && !rows_are_keys<C> ? tiles - 1 - number.position
                                                                 : number.position) *
                               tile_rows<C>);
    const int32_t left = count_rows<C>(tile.sequence) - tile.row_begin;
    tile.rows = left < tile_rows<C> ? left : tile_rows<C>;
    find_blocks<C>(p, tile);
    return tile;
}

/* Says whether some column of the block does not belong to some row. The queries behind the last
 * one have rows of zeros, which add nothing, and need no mask where nothing else is hidden. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_cut(const gradient_tile_t &tile, int32_t block) {
    if constexpr (rows_are_keys<C> && !has_mask<C> && !has_bias<C>)
        return false;
    else
        return block < tile.whole_begin || block >= tile.whole_end;
}

#endif
