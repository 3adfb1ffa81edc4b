/*
 * Blocks of keys in pages are loaded by TMA, in boxes of sm90_paging_t.box_keys keys each, a power
 * of two, none of which crosses a page. What a box brings ends where the page's run ends
 * (common/kv.h), so that nothing beyond a sequence's last key is read.
 *
 *     page_size 192, B_c 128: boxes of 64
 *     pages     |           0           |           1           |  2 ...
 *     boxes     |       |       |       |       |       |       |
 *     blocks    |       0       |       1       |       2       |
 */
#ifndef FLASH_KERNELS_SM90_LOAD_PAGE_BOXES_CUH
#define FLASH_KERNELS_SM90_LOAD_PAGE_BOXES_CUH

#include "sm90/load/box.cuh"
#include "sm90/load/pages.cuh"

/* Lane i loads box i of every block that has one. */
typedef struct box_loader {
    int32_t id; /* of the next box's page; negative: it has no key */
} box_loader_t;

/* Starts to load the id of the page of the lane's box of the block that begins with a key;
 * negative: there is no such block. */
template <flash_config_t C>
static __device__ __forceinline__ void fetch_ids(const paged_tensor_t &tensor, int32_t begin,
                                                 box_loader_t &loader) {
    const int32_t row = (int32_t)lane_index() * tensor.paging->box_keys;
    loader.id = -1;
    if (begin >= 0 && row < C.B_c && begin + row < tensor.len_k)
        loader.id = fetch_page_id(tensor, begin + row);
}

/* Returns the box that begins with a key; one of zeros, if it has no page. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t page_box(const paged_tensor_t &tensor, int32_t id,
                                                     int32_t key) {
    const int32_t page_size = tensor.problem->pages.page_size;
    const int32_t begin = flash_divide(key, tensor.paging->by_page_size) * page_size;
    const flash_kv_run_t run = {id, tensor.k_begin, key - begin,
                                min(tensor.len_k - begin, page_size)};
    return is_page(tensor, id) ? run_box<C>(run, tensor.head_kv, tensor.pool.entry_tokens)
                               : tma_box_t{0, SM90_RAGGED_END, tensor.head_kv, 0};
}

/* Loads the block that begins with a key, and fetches the ids of the block that begins with
 * next_begin; negative: there is none. */
template <flash_config_t C, kv_tensor T, typename STAGE>
static __device__ __forceinline__ void load_block(const paged_tensor_t &tensor, int32_t begin,
                                                  int32_t next_begin, box_loader_t &loader,
                                                  const STAGE &to) {
    const int32_t row = (int32_t)lane_index() * tensor.paging->box_keys;
    tma_box_t box = page_box<C>(tensor, loader.id, begin + row);
    fetch_ids<C>(tensor, next_begin, loader);
    mbarrier_wait(to.empty, to.parity ^ 1);
    tell_holes<C>(tensor, begin, to);
    if (lane_index() == 0)
        mbarrier_arrive_expect(to.full, landing_bytes<C, T>);
    __syncwarp();
    if (row < C.B_c)
#pragma unroll
        for (int i = 0; i < landing_panels<C, T>; ++i, box.column += landing_columns<C>)
            tma_load<true>(to.shared + landing_offset<C, T> + i * kv_panel_bytes<C> +
                               row * SM90_PANEL_BYTES,
                           tensor.pool.map, box, to.full, tensor.hint);
    __syncwarp();
}

/* TMA hands on what it has loaded. */
template <flash_config_t C> static __device__ __forceinline__ void finish_blocks(box_loader_t &) {
}

#endif
