/*
 * A thread block computes one tile: B_r queries of one head of one sequence, against the blocks of
 * keys that any of them sees.
 *
 * Blocks are numbered tile first, then head, then batch entry, so that blocks that run at the same
 * time read the same keys, and the query heads of a K/V head follow each other. Under a mask a
 * head's tiles run from the last, which sees most keys, in the order of tile_order.h.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_TILE_CUH
#define FLASH_KERNELS_SM80_FORWARD_TILE_CUH

#include "common/kv.h"
#include "sm80/forward/derive.cuh"
#include "sm80/ptx/special_registers.cuh"
#include "sm80/tile_order.h"

typedef struct query_tile {
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head;
    int32_t row_begin;   /* in the sequence */
    int32_t rows;        /* B_r, fewer at the end of the sequence, <= 0 past it */
    int32_t block_begin; /* blocks of B_c keys; empty when begin >= end */
    int32_t block_end;
    int32_t whole_begin; /* blocks that each row sees whole, without the one visited first */
    int32_t whole_end;
} query_tile_t;

template <flash_config_t C>
static __device__ __forceinline__ flash_sequence_t tile_sequence(const flash_params_t &p,
                                                                 int batch_index) {
    if constexpr (has_pages<C>)
        return flash_paged_sequence(&p, batch_index);
    else if constexpr (has_varlen<C>)
        return flash_sequence(&p, batch_index);
    else
        return flash_sequence_t{0, 0, p.seqlen_q, p.seqlen_k};
}

/* Returns the keys that query i of the sequence sees where no chunk hides any. */
template <flash_config_t C>
static __device__ __forceinline__ flash_range_t window_keys(const flash_params_t &p,
                                                            const flash_sequence_t &s, int64_t i) {
    if constexpr (has_window<C>)
        return flash_window_keys(&p, &s, i + p.diagonal_offset);
    else if constexpr (has_mask<C>)
        return flash_window_keys(&p, &s, i);
    else
        return flash_range_t{0, s.len_k};
}

template <flash_config_t C>
static __device__ __forceinline__ flash_range_t visible_keys(const flash_params_t &p,
                                                             const flash_sequence_t &s, int64_t i) {
    if constexpr (has_window<C>)
        return flash_visible_keys(&p, &s, i);
    else
        return window_keys<C>(p, s, i);
}

/* Finds the blocks of keys of a tile. Both ends of the keys that a row sees move right from row to
 * row, so the first row sees the tile's first key, and the last row its last. */
template <flash_config_t C>
static __device__ __forceinline__ void find_key_blocks(const flash_params_t &p,
                                                       query_tile_t &tile) {
    const flash_range_t first = visible_keys<C>(p, tile.sequence, tile.row_begin);
    const flash_range_t last =
        visible_keys<C>(p, tile.sequence, (int64_t)tile.row_begin + tile.rows - 1);
    tile.block_begin = first.begin / C.B_c;
    tile.block_end = (int32_t)(((int64_t)last.end + C.B_c - 1) / C.B_c);
    tile.whole_begin = (int32_t)(((int64_t)last.begin + C.B_c - 1) / C.B_c);
    tile.whole_end = first.end / C.B_c;
    tile.whole_end = tile.whole_end < tile.block_end ? tile.whole_end : tile.block_end - 1;
}

/* Returns the number of this thread block's tile, of those of a head in the order of their length,
 * and sets how many a head has. Without a mask all have the same length. Rows without dropout keep
 * head after head. */
template <flash_config_t C>
static __device__ __forceinline__ sm80_tile_number_t number_of_tile(const flash_params_t &p,
                                                                    uint32_t &tiles) {
    if constexpr (has_mask<C> && has_dropout<C>) {
        tiles = (uint32_t)sm80_tiles(&C, p.seqlen_q);
        return sm80_tile_of_block(block_number(), tiles, (uint32_t)p.n_heads * (uint32_t)p.batch);
    } else {
        const uint32_t number = block_number();
        tiles = (uint32_t)sm80_tiles(&C, p.seqlen_q);
        return sm80_tile_number_t{number / tiles, number % tiles};
    }
}

/* Finds the tile of this thread block. That is cheap enough to be repeated after the main loop,
 * which then need not keep the tile in registers; hence the volatile read of the block's number. */
template <flash_config_t C>
static __device__ __forceinline__ query_tile_t find_tile(const flash_params_t &p) {
    uint32_t tiles;
    const sm80_tile_number_t number = number_of_tile<C>(p, tiles);
    query_tile_t tile;
    tile.batch_index = (int32_t)(number.head / (uint32_t)p.n_heads);
    tile.head = (int32_t)(number.head % (uint32_t)p.n_heads);
    tile.sequence = tile_sequence<C>(p, tile.batch_index);
    tile.row_begin =
        (int32_t)((has_mask<C> ? tiles - 1 - number.position : number.position) * C.B_r);
    const int32_t left = tile.sequence.len_q - tile.row_begin;
    tile.rows = left < C.B_r ? left : C.B_r;
    find_key_blocks<C>(p, tile);
    return tile;
}

#endif
