/*
 * What a tile is: B_r queries of one head, against the blocks of keys that any of them sees; and
 * which tile a number stands for.
 *
 * In order, tiles are numbered tile first, then head, then batch entry: neighbours in time read the
 * same keys. Under a mask the tiles of a head run from the last, which sees most, to the first.
 * With longest_first the first heads may be handed out whole (scheduler.cuh), without numbers; of
 * the others a section of heads, as many as L2 holds, runs from the last tiles of all its heads to
 * the first ones; with varlen, where entries differ in tiles, it is of one entry.
 */
#ifndef FLASH_KERNELS_SM90_TILE_CUH
#define FLASH_KERNELS_SM90_TILE_CUH

#include "common/sequence.h"
#include "sm90/derive.cuh"

#include <type_traits>

typedef struct query_tile {
    int32_t batch_index;
    int32_t head;
    int32_t row_begin;
    int32_t block_begin; /* blocks of B_c keys; empty when begin >= end */
    int32_t block_end;
    int32_t whole_begin; /* blocks that each row sees whole */
    int32_t whole_end;   /* at most block_end */
} query_tile_t;

/* And its sequence, as in flash_sequence_t. */
typedef struct ragged_tile : query_tile_t {
    int32_t q_begin;
    int32_t k_begin;
    int32_t len_q;
    int32_t len_k;
} ragged_tile_t;

template <flash_config_t C>
using tile_of = std::conditional_t<has_varlen<C>, ragged_tile_t, query_tile_t>;

template <flash_config_t C>
static __device__ __forceinline__ flash_sequence_t sequence_of(const flash_params_t &p,
                                                               const tile_of<C> &t) {
    if constexpr (has_varlen<C>)
        return flash_sequence_t{t.q_begin, t.k_begin, t.len_q, t.len_k};
    else
        return flash_sequence_t{0, 0, p.seqlen_q, p.seqlen_k};
}

/* Keys that row i of the sequence sees. */
template <flash_config_t C>
static __device__ __forceinline__ flash_range_t visible_keys(const flash_params_t &p,
                                                             const tile_of<C> &t, int64_t i) {
    const flash_sequence_t sequence = sequence_of<C>(p, t);
    if constexpr (has_mask<C>)
        return flash_visible_keys(&p, &sequence, i);
    else
        return flash_range_t{0, sequence.len_k};
}

/* The blocks of `rows` rows of the tile's sequence. Both ends of the keys that a row sees move
 * right from row to row: the first row sees the first key of the rows', the last row sees their
 * last. Under a mask, blocks from the first row's last key on do not count as whole: once they are
 * done, each row has seen a key, if it sees any. */
template <flash_config_t C>
static __device__ __forceinline__ void find_key_blocks(const flash_params_t &p, tile_of<C> &t,
                                                       int32_t first_row, int32_t rows) {
    const int32_t last_row = min(first_row + rows, sequence_of<C>(p, t).len_q) - 1;
    const flash_range_t first = visible_keys<C>(p, t, first_row);
    const flash_range_t last = visible_keys<C>(p, t, last_row);
    t.block_begin = first.begin / C.B_c;
    t.block_end = (int32_t)(((int64_t)last.end + C.B_c - 1) / C.B_c);
    t.whole_begin = (int32_t)(((int64_t)last.begin + C.B_c - 1) / C.B_c);
    t.whole_end = has_mask<C> ? max(first.end - 1, 0) / C.B_c : first.end / C.B_c;
}

/* Some row may not see some key of the block. */
static __device__ __forceinline__ bool is_cut(const query_tile_t &t, int32_t block) {
    return block < t.whole_begin || block >= t.whole_end;
}

/* Numbers of the head, among those that are numbered together, and of the tile in it, as handed
 * out. */
typedef struct place {
    uint32_t head;
    uint32_t tile;
} place_t;

template <flash_config_t C>
static __device__ __forceinline__ place_t find_place(const sm90_params_t &params, uint32_t number,
                                                     uint32_t tiles) {
    if constexpr (!C.longest_first)
        return place_t{number / tiles, number % tiles};
    const flash_params_t &p = params.problem;
    const uint32_t heads = (uint32_t)p.n_heads * (has_varlen<C> ? 1 : (uint32_t)p.batch);
    const uint32_t whole = has_varlen<C> ? 0 : params.shares.whole_heads;
    const uint32_t section = number / (params.shares.section_heads * tiles);
    const uint32_t first_head = section * params.shares.section_heads;
    const uint32_t width = min((uint32_t)params.shares.section_heads, heads - whole - first_head);
    const uint32_t rest = number - first_head * tiles;
    return place_t{whole + first_head + rest % width, rest / width};
}

/* Of the tile with a number in its head, of so many tiles. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t first_row(uint32_t tiles, uint32_t tile) {
    return (int32_t)((has_mask<C> ? tiles - 1 - tile : tile) * C.B_r);
}

template <flash_config_t C>
static __device__ __forceinline__ tile_of<C> tile_at(const sm90_params_t &params, place_t place,
                                                     uint32_t tiles) {
    const flash_params_t &p = params.problem;
    tile_of<C> t;
    t.batch_index = (int32_t)(place.head / (uint32_t)p.n_heads);
    t.head = (int32_t)(place.head % (uint32_t)p.n_heads);
    t.row_begin = first_row<C>(tiles, place.tile);
    find_key_blocks<C>(p, t, t.row_begin, C.B_r);
    return t;
}

template <flash_config_t C>
static __device__ __forceinline__ tile_of<C> find_tile(const sm90_params_t &params,
                                                       uint32_t number) {
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, params.problem.seqlen_q);
    return tile_at<C>(params, find_place<C>(params, number, tiles), tiles);
}

/* With varlen; number: among the tiles of the batch entry. */
template <flash_config_t C>
static __device__ __forceinline__ tile_of<C>
find_tile_of_entry(const sm90_params_t &params, int32_t batch_index, uint32_t number) {
    const flash_params_t &p = params.problem;
    const flash_sequence_t s = flash_sequence(&p, batch_index);
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, s.len_q);
    const place_t place = find_place<C>(params, number, tiles);
    tile_of<C> t;
    t.batch_index = batch_index;
    t.head = (int32_t)place.head;
    t.row_begin = first_row<C>(tiles, place.tile);
    t.q_begin = (int32_t)s.q_begin;
    t.k_begin = (int32_t)s.k_begin;
    t.len_q = s.len_q;
    t.len_k = s.len_k;
    find_key_blocks<C>(p, t, t.row_begin, C.B_r);
    return t;
}

static __device__ __forceinline__ bool has_blocks(const query_tile_t &t) {
    return t.block_begin < t.block_end;
}

#endif
