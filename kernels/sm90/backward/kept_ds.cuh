/*
 * dS^T is kept in tiles of 128 queries and 128 keys (common/kept_ds.h), four panels that lie as
 * wgmma takes an operand of 64 queries and 64 keys from shared memory: a row of 128 bytes for each
 * key, swizzled.
 *
 *     | keys 0-63, queries 0-63 | keys 0-63, queries 64-127 | keys 64-127, ... | ...
 *
 * A thread that has computed dS^T has two queries of every eight. It stores those of 32 or 16 that
 * are next to each other in blocks of queries, at a time: so queries of a panel have an order of
 * their own. Element e of chunk c of a row is
 *
 *     of 32    query 32 (c / 4) + 8 (e / 2) + 2 (c % 4) + e % 2
 *     of 16    query 16 (c / 2) + 8 (e / 2 % 2) + 4 (c % 2) + 2 (e / 4) + e % 2
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_KEPT_DS_CUH
#define FLASH_KERNELS_SM90_BACKWARD_KEPT_DS_CUH

#include "common/ptx/opaque.cuh"
#include "sm90/backward/tiles.cuh"
#include "sm90/fragments.cuh"
#include "sm90/ptx/predicated.cuh"

constexpr int ds_panel_rows = SM90_WARPGROUP_ROWS;
constexpr int ds_panel_bytes = ds_panel_rows * SM90_PANEL_BYTES;
template <flash_config_t C> constexpr int ds_store_rows = sm90_ds_store_rows(&C);

/* Returns the first of the thread's two queries among the consumer's 64, as rows of accumulators of
 * dQ are numbered; the other is ds_rows_apart behind it. */
template <flash_config_t C> constexpr int ds_rows_apart = ds_store_rows<C> == 32 ? 2 : 4;
template <flash_config_t C> static __device__ __forceinline__ int32_t ds_query() {
    const int warp = threadIdx.x / warp_threads % warpgroup_warps, e = row_of_warp(0);
    return ds_store_rows<C> == 32 ? warp / 2 * 32 + e / 2 * 8 + warp % 2 * 4 + e % 2
                                  : warp * 16 + e / 2 % 2 * 8 + e / 4 * 2 + e % 2;
}

/* Returns the number of the first place of a query head of a sequence. */
static __device__ __forceinline__ uint32_t first_ds_place(const sm90_backward_params_t &params,
                                                          const gradient_tile_t &tile,
                                                          int32_t head) {
    const flash_section_t &section = params.gradients.section;
    const flash_kept_ds_t &ds = params.gradients.ds;
    const int32_t plane = (tile.batch_index - section.first_batch) * ds.batch_heads + head -
                          section.first_head * params.problem.group;
    const int32_t row = ds.has_row_of_batch
                            ? (int32_t)(tile.sequence.q_begin / SM90_DS_ROWS) + tile.batch_index
                            : 0;
    return (uint32_t)plane * (uint32_t)ds.head_tiles + (uint32_t)(row * ds.row_places);
}

/* Returns what flash_kept_place() says of a row of tiles: the place of column 0, and whether those
 * of others come before it, which they do not with varlen. */
typedef struct ds_row {
    uint32_t place;
    bool goes_back;
} ds_row_t;
template <flash_config_t C>
static __device__ __forceinline__ ds_row_t find_ds_row(const flash_kept_ds_t &ds, uint32_t first,
                                                       int32_t row) {
    const bool is_last = !has_varlen<C> && ds.is_folded && 2 * row >= ds.rows;
    const int32_t number = (is_last ? ds.rows - 1 - row : row) * ds.row_places;
    return ds_row_t{first + (uint32_t)(number + (is_last ? ds.row_places - 1 : 0)), is_last};
}

/* Returns how many queries stand before the first of those that rows of tiles are counted from
 * here: with varlen these begin with the tile's first query. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t queries_before_ds(const gradient_tile_t &tile) {
    return has_varlen<C> ? tile.first_query : 0;
}

/* This is where a consumer of dK and dV keeps dS^T of a tile of keys. */
typedef struct ds_place {
    uint32_t first; /* place of the query head's first row of tiles */
    int32_t begin;  /* queries that are kept, counted from that row on */
    int32_t end;
    int32_t packed;
} ds_place_t;

/* One register has the number of the tile's first 64 keys, and how many keys the sequence has from
 * the thread's first row on, up to 255. */
static __device__ __forceinline__ int32_t column_of(const ds_place_t &place) {
    return place.packed >> 9;
}

/* Returns which half of a tile of dS the consumer's keys are, where both consumers have the same.
 */
static __device__ __forceinline__ int panel_of(const ds_place_t &place) {
    return place.packed >> 8 & 1;
}

static __device__ __forceinline__ int32_t keys_from(const ds_place_t &place) {
    return place.packed & 255;
}

/* Finds it for a consumer's 64 keys from number `first` of the tile on, of which the thread has the
 * one of number `row`. */
template <flash_config_t C>
static __device__ __forceinline__ ds_place_t find_ds_place(const sm90_backward_params_t &params,
                                                           const gradient_tile_t &tile, int first,
                                                           int row) {
    const flash_params_t &p = params.problem;
    const int32_t before = queries_before_ds<C>(tile), after = tile.first_query - before;
    const int32_t seeing = after + max(seen_by<C>(p, tile, tile.begin + first).begin, 0);
    ds_place_t place;
    place.first = first_ds_place(params, tile, tile.head * p.group) +
                  (uint32_t)(before / SM90_DS_ROWS * params.gradients.ds.row_places);
    place.begin = seeing / ds_panel_rows * ds_panel_rows;
    place.end = (tile.sequence.len_q - before + SM90_DS_ROWS - 1) / SM90_DS_ROWS * SM90_DS_ROWS;
    place.packed =
        tile.begin / ds_panel_rows << 8 | min(max(tile.sequence.len_k - tile.begin - row, 0), 255);
    return place;
}

/* Returns where the thread stores its part of queries from `query` on, of the upper of its two keys
 * among 64, number `keys` in the tile; that of the lower one lies 8 rows below. */
template <flash_config_t C>
static __device__ __forceinline__ char *
ds_address(const sm90_backward_params_t &params, const ds_place_t &place, int keys, int32_t query) {
    constexpr int threads_of_chunk = 32 / ds_store_rows<C>;
    const uint32_t thread = opaque(threadIdx.x); /* there are no registers to keep what follows */
    const uint32_t lane = thread % warp_threads, in_quad = lane % 4;
    const uint32_t row = thread / warp_threads % warpgroup_warps * 16 + lane / 4;
    const uint32_t chunk = (uint32_t)query % ds_panel_rows / 8 + in_quad / threads_of_chunk;
    const ds_row_t of_row = find_ds_row<C>(params.gradients.ds, place.first, query / SM90_DS_ROWS);
    const uint32_t tile =
        of_row.place + (uint32_t)(of_row.goes_back ? -column_of(place) : column_of(place));
    const uint32_t panel = (uint32_t)(keys * 2 + query / ds_panel_rows % 2);
    return (char *)params.gradients.ds.data + (uint64_t)tile * SM90_DS_TILE_BYTES +
           panel * ds_panel_bytes + row * SM90_PANEL_BYTES + (chunk ^ row % 8) * SM90_CHUNK_BYTES +
           in_quad % threads_of_chunk * (SM90_CHUNK_BYTES / threads_of_chunk);
}

/* Stores it, if it is wanted: the last two words only where they are there. */
template <flash_config_t C>
static __device__ __forceinline__ void store_ds(char *at, bool wanted, uint4 values) {
    if constexpr (ds_store_rows<C> == 32)
        global_store_if(wanted, at, values);
    else
        global_store_if(wanted, at, uint2{values.x, values.y});
}

/* Returns how many queries that rows of tiles are counted from stand before those that pass by. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t queries_before_passing(const flash_params_t &p) {
    const flash_sequence_t sequence = {0, 0, p.seqlen_q, p.seqlen_k};
    return !has_varlen<C> && is_masked<C>(p) ? find_first_query<C>(p, sequence) : 0;
}

/* Stores the fragments of -dS^T of the queries from number `passing` of those that pass by on, if
 * dS is kept; 0 of keys that do not exist. */
template <flash_config_t C>
static __device__ __forceinline__ void keep_ds(const sm90_backward_params_t &params,
                                               const ds_place_t &place, int keys, int32_t passing,
                                               const uint32_t (&ds)[C.B_r / 16][4]) {
    constexpr int steps = ds_store_rows<C> / 16;
    const bool keeps = params.gradients.ds.data != nullptr;
    const int32_t query = passing + queries_before_passing<C>(params.problem);
#pragma unroll
    for (int i = 0; i < C.B_r / ds_store_rows<C>; ++i) {
        const int32_t first = query + i * ds_store_rows<C>;
        const bool is_within =
            C.B_r % ds_panel_rows == 0 || (first >= place.begin && first < place.end);
        char *const at = ds_address<C>(params, place, keys, first);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t mask = keys_from(place) > 8 * half ? 0xffffffffu : 0u;
            const int last = steps * (i + 1) - 1; /* of the thread's fragments */
            const uint4 values = {ds[steps * i][half] & mask, ds[steps * i][2 + half] & mask,
                                  ds[last][half] & mask, ds[last][2 + half] & mask};
            store_ds<C>(at + half * 8 * SM90_PANEL_BYTES, keeps && is_within, values);
        }
    }
}

/* Stores zeros for queries before the consumer's first block, which begins at `query` of each of
 * the group's heads: those of a panel that it is in. */
template <flash_config_t C>
static __device__ __forceinline__ void
keep_zeros(const sm90_backward_params_t &params, const ds_place_t &place, int keys, int32_t query) {
    if (C.B_r % ds_panel_rows == 0 || params.gradients.ds.data == nullptr)
        return;
    ds_place_t of_head = place;
#pragma unroll 1
    for (int32_t i = 0; i < params.problem.group; ++i) {
#pragma unroll 1
        for (int32_t first = place.begin; first < query; first += ds_store_rows<C>)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_ds<C>(ds_address<C>(params, of_head, keys, first) +
                                half * 8 * SM90_PANEL_BYTES,
                            true, uint4{0, 0, 0, 0});
        of_head.first += (uint32_t)params.gradients.ds.head_tiles;
    }
}

#endif
