/*
 * A tile is what a block computes at a time: B_r rows of queries, against the blocks of keys that
 * any of them sees. schedule/order.cuh says which tile a number stands for.
 *
 * The rows are B_r queries of one head, or fewer queries of 2^pack_shift heads of a group, whose K
 * and V are the same. Each consumer then has its own queries, head after head: with 2^2 heads
 *
 *     consumer 0                                  consumer 1
 *     row   0       16      32      48            64 ...
 *           head 0  head 1  head 2  head 3        head 0 ...
 *           queries 0 ... 15 of each              queries 16 ... 31 of each
 */
#ifndef FLASH_KERNELS_SM90_TILE_CUH
#define FLASH_KERNELS_SM90_TILE_CUH

#include "common/sequence.h"
#include "sm90/derive.cuh"

#include <type_traits>

typedef struct query_tile {
    int32_t batch_index;
    int32_t head;        /* the first one, where heads share the tile */
    int32_t row_begin;   /* first query, in its sequence */
    int32_t block_begin; /* blocks of B_c keys; empty when begin >= end */
    int32_t block_end;
    int32_t whole_begin; /* blocks that each row sees whole */
    int32_t whole_end;   /* at most block_end */
} query_tile_t;

/* A tile carries its sequence with varlen, in the members of flash_sequence_t. */
typedef struct ragged_tile : query_tile_t {
    int32_t q_begin;
    int32_t k_begin;
    int32_t len_q;
    int32_t len_k;
} ragged_tile_t;

/* A tile of which consumers only count the blocks has their number in whole_begin, which is 0
 * without a window. */
typedef struct counted_tile : ragged_tile_t {
} counted_tile_t;

template <flash_config_t C>
using tile_of = std::conditional_t<counts_blocks<C>, counted_tile_t,
                                   std::conditional_t<has_varlen<C>, ragged_tile_t, query_tile_t>>;

template <flash_config_t C>
static __device__ __forceinline__ flash_sequence_t sequence_of(const flash_params_t &p,
                                                               const tile_of<C> &tile) {
    if constexpr (has_varlen<C>)
        return flash_sequence_t{tile.q_begin, tile.k_begin, tile.len_q, tile.len_k};
    else
        return flash_sequence_t{0, 0, p.seqlen_q, p.seqlen_k};
}

/* Returns how far the diagonal is shifted, which takes a row with windows. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t diagonal_offset(const flash_params_t &p) {
    return has_window<C> ? p.diagonal_offset : 0;
}

/* Returns the keys that row i of the tile's sequence sees. */
template <flash_config_t C>
static __device__ __forceinline__ flash_range_t visible_keys(const flash_params_t &p,
                                                             const tile_of<C> &tile, int64_t i) {
    const flash_sequence_t sequence = sequence_of<C>(p, tile);
    if constexpr (has_window<C>)
        return flash_visible_keys(&p, &sequence, i);
    else if constexpr (has_mask<C>)
        return flash_window_keys(&p, &sequence, i);
    else
        return flash_range_t{0, sequence.len_k};
}

/* Finds the blocks of keys that rows [first_row, first_row + rows) of the tile's sequence see. Both
 * ends of the keys that a row sees move right from row to row, so that the first row sees the first
 * of all visible keys, and the last row the last. Under a mask, blocks from the first row's last
 * key on do not count as whole. Consumers go from the last block to the first, so that when these
 * blocks are done, each row has seen a key, if it sees any. */
template <flash_config_t C>
static __device__ __forceinline__ void find_key_blocks(const flash_params_t &p, tile_of<C> &tile,
                                                       int32_t first_row, int32_t rows) {
    const int32_t last_row = min(first_row + rows, sequence_of<C>(p, tile).len_q) - 1;
    const flash_range_t first = visible_keys<C>(p, tile, first_row);
    const flash_range_t last = visible_keys<C>(p, tile, last_row);
    tile.block_begin = first.begin / C.B_c;
    tile.block_end = (int32_t)(((int64_t)last.end + C.B_c - 1) / C.B_c);
    tile.whole_begin = (int32_t)(((int64_t)last.begin + C.B_c - 1) / C.B_c);
    tile.whole_end = has_mask<C> ? max(first.end - 1, 0) / C.B_c : first.end / C.B_c;
}

/* ---- Rows and queries ---- */

template <flash_config_t C>
static __device__ __forceinline__ int32_t pack_shift(const flash_params_t &p) {
    return sm90_pack_shift(&C, &p);
}

/* Counts the queries that each head has in a tile. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t tile_queries(const flash_params_t &p) {
    return C.B_r >> pack_shift<C>(p);
}

/* Counts the queries that each head has in a consumer's rows. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t warpgroup_queries(const flash_params_t &p) {
    return SM90_WARPGROUP_ROWS >> pack_shift<C>(p);
}

/* ---- Blocks of keys ---- */

static __device__ __forceinline__ bool has_blocks(const query_tile_t &tile) {
    return tile.block_begin < tile.block_end;
}

/* Says whether a mask cuts a block: some row may not see some key of it. */
static __device__ __forceinline__ bool is_cut(const query_tile_t &tile, int32_t block) {
    return block < tile.whole_begin || block >= tile.whole_end;
}

static __device__ __forceinline__ bool is_cut(const counted_tile_t &tile, int32_t block) {
    return block >= tile.whole_end;
}

#endif
