/*
 * Blocks of K and V in pages. A block is made of pieces, of sm90_paging_t.piece_keys keys each,
 * none of which crosses a page: its box begins in one page, and ends where the page's run ends
 * (common/kv.h), so that nothing beyond a sequence's last key is read.
 *
 *     page_size 48, B_c 128: pieces of 16
 *     pages     |     0     |     1     |     2     |     3     |     4     |  5 ...
 *     pieces    |   |   |   |   |   |   |   |   |   |   |   |   |   |   |   |
 *     blocks    |               0               |               1               |
 *
 * Each lane looks up the pages of every 32nd piece, before the stage is free; then one thread loads
 * piece after piece.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_PAGES_CUH
#define FLASH_KERNELS_SM90_LOAD_PAGES_CUH

#include "sm90/block_state.cuh"
#include "sm90/load/box.cuh"

/* This is K or V of a sequence and a head. */
typedef struct paged_tensor {
    const sm90_tensor_map_t *map;
    const flash_pages_t *pages;
    const sm90_paging_t *paging;
    const int32_t *ids; /* of the sequence; NULL: a cache of slots */
    int32_t slot;
    int32_t entry_tokens;
    int32_t len_k;
    int32_t head_kv;
} paged_tensor_t;

template <flash_config_t C>
static __device__ __forceinline__ paged_tensor_t paged_k(const sm90_params_t &params,
                                                         const tile_of<C> &tile, int64_t first_id) {
    const flash_params_t &p = params.problem;
    const int32_t *ids = p.pages.table ? p.pages.table + first_id : NULL;
    return {&params.k,  &p.pages,           &params.paging,
            ids,        (int32_t)first_id,  params.entry_tokens.k,
            tile.len_k, tile.head / p.group};
}

template <flash_config_t C>
static __device__ __forceinline__ paged_tensor_t paged_v(const sm90_params_t &params,
                                                         const tile_of<C> &tile, int64_t first_id) {
    const flash_params_t &p = params.problem;
    const int32_t *ids = p.pages.table ? p.pages.v_table + first_id : NULL;
    return {&params.v,  &p.pages,           &params.paging,
            ids,        (int32_t)first_id,  params.entry_tokens.v,
            tile.len_k, tile.head / p.group};
}

/* A lane looks up so many pages of a block's pieces; an id that is no page is negative. */
template <flash_config_t C> constexpr int lane_pieces = (C.B_c + warp_threads - 1) / warp_threads;
template <flash_config_t C> struct page_ids { int32_t of[lane_pieces<C>]; };

/* Starts to load the page ids of the lane's pieces of the block that begins with a key. Pieces
 * beyond the sequence or the block have none. */
template <flash_config_t C>
static __device__ __forceinline__ page_ids<C> fetch_page_ids(const paged_tensor_t &tensor,
                                                             int32_t begin) {
    const sm90_paging_t &paging = *tensor.paging;
    page_ids<C> ids;
#pragma unroll
    for (int i = 0; i < lane_pieces<C>; ++i) {
        const int32_t at = (i * warp_threads + (int32_t)lane_index()) * paging.piece_keys;
        ids.of[i] = tensor.slot;
        if (at >= C.B_c || begin + at >= tensor.len_k)
            ids.of[i] = -1;
        else if (tensor.ids != NULL)
            ids.of[i] = __ldg(tensor.ids + flash_divide(begin + at, paging.by_page_size));
    }
    return ids;
}

/* Returns the box of the piece that begins with a key; a box of zeros, if it has no page. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t piece_box(const paged_tensor_t &tensor, int32_t id,
                                                      int32_t key) {
    const flash_pages_t &pages = *tensor.pages;
    if ((uint32_t)id >= (uint32_t)pages.n_pages)
        return tma_box_t{0, SM90_RAGGED_END, tensor.head_kv, 0};
    const int32_t begin = flash_divide(key, tensor.paging->by_page_size) * pages.page_size;
    const flash_kv_run_t run = {id, 0, key - begin, min(tensor.len_k - begin, pages.page_size)};
    return run_box<C>(run, tensor.head_kv, tensor.entry_tokens);
}

/* Loads the pieces of the block that begins with a key to `shared`. */
template <flash_config_t C>
static __device__ __forceinline__ void load_pieces(const paged_tensor_t &tensor,
                                                   const page_ids<C> &ids, int32_t begin,
                                                   uint32_t shared, uint32_t barrier) {
    const int32_t piece_keys = tensor.paging->piece_keys;
#pragma unroll
    for (int i = 0; i < lane_pieces<C>; ++i)
#pragma unroll 1
        for (int lane = 0; lane < warp_threads; ++lane) {
            const int32_t at = (i * warp_threads + lane) * piece_keys;
            if (at >= C.B_c)
                return;
            const int32_t id = __shfl_sync(0xffffffffu, ids.of[i], lane);
            tma_box_t box = piece_box<C>(tensor, id, begin + at);
            if (elect_one())
#pragma unroll
                for (int j = 0; j < landing_panels<C>; ++j, box.column += landing_columns<C>)
                    tma_load<true>(shared + landing_offset<C> + j * kv_panel_bytes<C> +
                                       at * SM90_PANEL_BYTES,
                                   tensor.map, box, barrier, l2_evict_last);
            __syncwarp();
        }
}

#endif
