/*
 * With K and V in pages, each lane finds the rows of one key of a step, and hands them to the lanes
 * that copy them (load.cuh). Page ids are loaded one step before they are needed.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_PAGES_CUH
#define FLASH_KERNELS_SM80_DECODE_PAGES_CUH

#include "common/decode/block.cuh"
#include "sm80/decode/derive.cuh"

typedef struct page_stream {
    const int32_t *k_ids; /* of the sequence; NULL: a cache of slots */
    const int32_t *v_ids;
    int32_t slot;
    int32_t key;     /* first key of the step whose ids were loaded last */
    int32_t in_page; /* position of the lane's key of that step */
    int32_t k_id;
    int32_t v_id;
    int64_t k_offset; /* bytes, of the lane's key one step earlier; negative: none */
    int64_t v_offset;
} page_stream_t;

/* Loads the page ids of the lane's key of a step; `left` keys follow the step's first one. */
template <flash_config_t C>
static __device__ __forceinline__ void fetch_ids(page_stream_t &pages,
                                                 const sm80_decode_params_t &params, int32_t left) {
    const int32_t lane = threadIdx.x % DECODE_WARP_THREADS;
    const int32_t key = pages.key + max(min(lane, left), 0);
    pages.k_id = pages.v_id = pages.slot;
    pages.in_page = key;
    if (pages.k_ids == NULL || left < 0)
        return;
    const int32_t page = flash_divide(key, params.by_page_size);
    pages.in_page = key - page * params.attention.pages.page_size;
    pages.k_id = __ldg(pages.k_ids + page);
    pages.v_id = __ldg(pages.v_ids + page);
}

static __device__ __forceinline__ int64_t page_row_offset(int32_t id, int32_t in_page,
                                                          int32_t n_pages,
                                                          const flash_strides_t &stride,
                                                          int element_size) {
    if ((uint32_t)id >= (uint32_t)n_pages)
        return -1;
    return (id * stride.batch + in_page * stride.seq) * element_size;
}

/* Computes the rows of the keys whose page ids were loaded. */
template <flash_config_t C>
static __device__ __forceinline__ void resolve_ids(page_stream_t &pages, const flash_params_t &p) {
    pages.k_offset =
        page_row_offset(pages.k_id, pages.in_page, p.pages.n_pages, p.k_stride, element_bytes<C>);
    pages.v_offset =
        page_row_offset(pages.v_id, pages.in_page, p.pages.n_pages, p.v_stride, element_bytes<C>);
}

/* Moves on by step_keys: finds the rows of the step whose ids are here, and loads the next ids. */
template <flash_config_t C>
static __device__ __forceinline__ void next_pages(page_stream_t &pages,
                                                  const sm80_decode_params_t &params,
                                                  int32_t step_keys, int32_t left) {
    resolve_ids<C>(pages, params.attention);
    pages.key += step_keys;
    fetch_ids<C>(pages, params, left - step_keys);
}

template <flash_config_t C>
static __device__ __forceinline__ void
start_pages(page_stream_t &pages, const sm80_decode_params_t &params, int32_t batch_index,
            int32_t step_keys, int32_t first, int32_t left) {
    const flash_params_t &p = params.attention;
    const int64_t first_id = flash_kv_first_id(&p, batch_index);
    pages.slot = (int32_t)first_id;
    pages.k_ids = p.pages.table ? p.pages.table + first_id : NULL;
    pages.v_ids = p.pages.table ? p.pages.v_table + first_id : NULL;
    pages.key = first;
    fetch_ids<C>(pages, params, left);
    next_pages<C>(pages, params, step_keys, left);
}

#endif
