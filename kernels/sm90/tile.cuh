/*
 * What a tile is: B_r queries of one head, against the blocks of keys that any of them sees; and
 * which tile a number stands for.
 *
 * In order, tiles are numbered tile first, then head, then batch entry: neighbours in time read the
 * same keys. Under a mask the tiles of a head run from the last, which sees most, to the first.
 * With longest_first a section of heads, as many as L2 holds, runs from the last tiles of all its
 * heads to the first ones.
 */
#ifndef FLASH_KERNELS_SM90_TILE_CUH
#define FLASH_KERNELS_SM90_TILE_CUH

#include "common/sequence.h"
#include "sm90/derive.cuh"

typedef struct query_tile {
    int32_t batch_index;
    int32_t head;
    int32_t row_begin;
    int32_t block_begin; /* blocks of B_c keys; empty when begin >= end */
    int32_t block_end;
    int32_t whole_begin; /* blocks that each row sees whole */
    int32_t whole_end;   /* at most block_end */
} query_tile_t;

static __device__ __forceinline__ flash_sequence_t sequence_of(const flash_params_t &p) {
    return flash_sequence_t{0, 0, p.seqlen_q, p.seqlen_k};
}

/* Keys that row i of the sequence sees. */
template <flash_config_t C>
static __device__ __forceinline__ flash_range_t visible_keys(const flash_params_t &p, int64_t i) {
    const flash_sequence_t sequence = sequence_of(p);
    if constexpr (has_mask<C>)
        return flash_visible_keys(&p, &sequence, i);
    else
        return flash_range_t{0, sequence.len_k};
}

/* Both ends of the keys that a row sees move right from row to row: the first row sees the first
 * key of the tile, the last row sees its last. Under a mask, blocks from the first row's last key
 * on do not count as whole: once they are done, each row has seen a key, if it sees any. */
template <flash_config_t C>
static __device__ __forceinline__ void find_key_blocks(const flash_params_t &p, query_tile_t &t) {
    const int32_t last_row = min(t.row_begin + C.B_r, p.seqlen_q) - 1;
    const flash_range_t first = visible_keys<C>(p, t.row_begin);
    const flash_range_t last = visible_keys<C>(p, last_row);
    t.block_begin = first.begin / C.B_c;
    t.block_end = (int32_t)(((int64_t)last.end + C.B_c - 1) / C.B_c);
    t.whole_begin = (int32_t)(((int64_t)last.begin + C.B_c - 1) / C.B_c);
    t.whole_end = has_mask<C> ? max(first.end - 1, 0) / C.B_c : first.end / C.B_c;
}

/* Some row may not see some key of the block. */
static __device__ __forceinline__ bool is_cut(const query_tile_t &t, int32_t block) {
    return block < t.whole_begin || block >= t.whole_end;
}

/* Numbers of the head, counted over the batch, and of the tile in it, as handed out. */
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
    const uint32_t heads = (uint32_t)p.n_heads * (uint32_t)p.batch;
    const uint32_t section = number / (params.section_heads * tiles);
    const uint32_t first_head = section * params.section_heads;
    const uint32_t width = min((uint32_t)params.section_heads, heads - first_head);
    const uint32_t rest = number - first_head * tiles;
    return place_t{first_head + rest % width, rest / width};
}

template <flash_config_t C>
static __device__ __forceinline__ query_tile_t find_tile(const sm90_params_t &params,
                                                         uint32_t number) {
    const flash_params_t &p = params.problem;
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, p.seqlen_q);
    const place_t place = find_place<C>(params, number, tiles);
    query_tile_t t;
    t.batch_index = (int32_t)(place.head / (uint32_t)p.n_heads);
    t.head = (int32_t)(place.head % (uint32_t)p.n_heads);
    t.row_begin = (int32_t)((has_mask<C> ? tiles - 1 - place.tile : place.tile) * C.B_r);
    find_key_blocks<C>(p, t);
    return t;
}

static __device__ __forceinline__ bool has_blocks(const query_tile_t &t) {
    return t.block_begin < t.block_end;
}

#endif
