/*
 * Tiles are numbered; this file says which tile a number stands for.
 *
 * In turn, tiles are numbered tile first, then head, then batch entry, so that blocks which run at
 * the same time read the same keys. Under a mask the tiles of a head run from the last, which sees
 * most keys, to the first.
 *
 * With longest_first the first heads may be handed out whole (scheduler.cuh); they have no numbers.
 * The other heads form sections of params.schedule.section_heads, whose K and V fit L2 together. A
 * section runs through the last tiles of all its heads, then the last but one of each, and so on;
 * for two sections of two heads with three tiles each:
 *
 *     number   0   1   2   3   4   5    6   7   8   9   10  11
 *     head     0   1   0   1   0   1    2   3   2   3   2   3
 *     rows     last    middle  first    last    middle  first
 *
 * With varlen the tiles of each batch entry are numbered by themselves, from 0 on.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_ORDER_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_ORDER_CUH

#include "sm90/tile.cuh"

/* This says where a tile is: its head, counted among the heads that are numbered together, and its
 * place in the order in which the tiles of a head are handed out. */
typedef struct tile_position {
    uint32_t head;
    uint32_t tile;
} tile_position_t;

/* Returns the position of the tile with this number. tiles: the tiles of a head. */
template <flash_config_t C>
static __device__ __forceinline__ tile_position_t find_position(const sm90_params_t &params,
                                                                uint32_t number, uint32_t tiles) {
    if constexpr (!C.longest_first)
        return tile_position_t{number / tiles, number % tiles};
    const flash_params_t &p = params.problem;
    const uint32_t heads = (uint32_t)sm90_heads(&C, &p) * (has_varlen<C> ? 1 : (uint32_t)p.batch);
    const uint32_t whole = has_varlen<C> ? 0 : params.schedule.whole_heads;
    const uint32_t section = number / (params.schedule.section_heads * tiles);
    const uint32_t first_head = section * params.schedule.section_heads;
    const uint32_t width = min((uint32_t)params.schedule.section_heads, heads - whole - first_head);
    const uint32_t rest = number - first_head * tiles;
    return tile_position_t{whole + first_head + rest % width, rest / width};
}

/* Returns the first query of tile number `tile` of a head that has `tiles` of them. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t first_query(const flash_params_t &p, uint32_t tiles,
                                                      uint32_t tile) {
    return (int32_t)(has_mask<C> ? tiles - 1 - tile : tile) * tile_queries<C>(p);
}

template <flash_config_t C>
static __device__ __forceinline__ tile_of<C> tile_at(const sm90_params_t &params,
                                                     tile_position_t position, uint32_t tiles) {
    const flash_params_t &p = params.problem;
    tile_of<C> tile;
    const uint32_t heads = (uint32_t)sm90_heads(&C, &p);
    tile.batch_index = (int32_t)(position.head / heads);
    tile.head = (int32_t)(position.head % heads) << pack_shift<C>(p);
    tile.row_begin = first_query<C>(p, tiles, position.tile);
    find_key_blocks<C>(p, tile, tile.row_begin, tile_queries<C>(p));
    return tile;
}

/* Returns the tile with this number, without varlen. */
template <flash_config_t C>
static __device__ __forceinline__ tile_of<C> find_tile(const sm90_params_t &params,
                                                       uint32_t number) {
    const uint32_t tiles =
        (uint32_t)sm90_tiles_of_head(&C, &params.problem, params.problem.seqlen_q);
    return tile_at<C>(params, find_position<C>(params, number, tiles), tiles);
}

/* Returns the tile with this number among the tiles of a batch entry, whose sequence is s, with
 * varlen. */
template <flash_config_t C>
static __device__ __forceinline__ tile_of<C>
find_tile_of_entry(const sm90_params_t &params, int32_t batch_index, const flash_sequence_t &s,
                   uint32_t number) {
    const flash_params_t &p = params.problem;
    const uint32_t tiles = (uint32_t)sm90_tiles_of_head(&C, &p, s.len_q);
    const tile_position_t position = find_position<C>(params, number, tiles);
    tile_of<C> tile;
    tile.batch_index = batch_index;
    tile.head = (int32_t)position.head << pack_shift<C>(p);
    tile.row_begin = first_query<C>(p, tiles, position.tile);
    tile.q_begin = (int32_t)s.q_begin;
    tile.k_begin = (int32_t)s.k_begin;
    tile.len_q = s.len_q;
    tile.len_k = s.len_k;
    find_key_blocks<C>(p, tile, tile.row_begin, tile_queries<C>(p));
    return tile;
}

#endif
