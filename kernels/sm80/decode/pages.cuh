/*
 * With K and V in pages, the lanes of a warp look up the rows of several steps at a time, and
 * hand them to the lanes that copy them (load.cuh). A lane has one step if the keys of a step
 * lie in one page, else one key of a step:
 *
 *     lane                       0        1      ...     16            17      ...
 *     page_size % B_c = 0        step 0   step 1         step 16       step 17
 *     else, with B_c = 16        key 0    key 1          key 0         key 1
 *                                of step 0               of step 1
 *
 * Page ids are loaded one lookup before they are needed.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_PAGES_CUH
#define FLASH_KERNELS_SM80_DECODE_PAGES_CUH

#include "common/decode/block.cuh"
#include "common/page_holes.cuh"
#include "sm80/decode/derive.cuh"

typedef struct page_stream {
    const int32_t *k_ids; /* of the sequence; NULL: a cache of slots */
    const int32_t *v_ids;
    int32_t slot;
    int32_t step_lanes;  /* lanes per step: 1 or B_c */
    int32_t lane;        /* first lane of the next step to load */
    int32_t lane_keys;   /* keys from the lookup's first one to the lane's */
    int32_t lookup_keys; /* keys from lookup to lookup */
    int32_t key;         /* first key of the lookup whose ids were loaded last */
    int32_t in_page;     /* position of the lane's key of that lookup */
    int32_t k_id;
    int32_t v_id;
    int64_t k_offset; /* bytes, of the lane's key one lookup earlier; negative: none */
    int64_t v_offset;
} page_stream_t;

/* Loads the page ids of the lane's key of a lookup; `left` keys follow the lookup's first one. */
template <flash_config_t C>
static __device__ __forceinline__ void fetch_ids(page_stream_t &pages,
                                                 const sm80_decode_params_t &params, int32_t left) {
    const int32_t key = pages.key + max(min(pages.lane_keys, left), 0);
    pages.k_id = pages.v_id = pages.slot;
    pages.in_page = key;
    if (pages.k_ids == NULL || left < 0)
        return;
    const int32_t page = flash_divide(key, params.by_page_size);
    pages.in_page = key - page * params.attention.pages.page_size;
    pages.k_id = __ldg(pages.k_ids + page);
    pages.v_id = __ldg(pages.v_ids + page);
    if (hides_holes<C> && params.attention.bias.has_page_holes && pages.k_id < 0)
        pages.v_id = -1;
}

static __device__ __forceinline__ int64_t page_row_offset(int32_t id, int32_t in_page,
                                                          int32_t n_pages,
                                                          const flash_strides_t &stride,
                                                          int element_size) {
    if ((uint32_t)id >= (uint32_t)n_pages)
        return -1;
    return (id * stride.batch + in_page * stride.seq) * element_size;
}

/* Begins the lookup whose ids were loaded: finds the rows of its keys, and loads the next ids.
 * `left` keys follow its first one. */
template <flash_config_t C>
static __device__ __forceinline__ void
next_lookup(page_stream_t &pages, const sm80_decode_params_t &params, int32_t left) {
    const flash_params_t &p = params.attention;
    pages.k_offset =
        page_row_offset(pages.k_id, pages.in_page, p.pages.n_pages, p.k_stride, element_bytes<C>);
    pages.v_offset =
        page_row_offset(pages.v_id, pages.in_page, p.pages.n_pages, p.v_stride, element_bytes<C>);
    pages.lane = 0;
    pages.key += pages.lookup_keys;
    fetch_ids<C>(pages, params, left - pages.lookup_keys);
}

/* Moves on to the next step, whose first key is followed by `left` more. */
template <flash_config_t C>
static __device__ __forceinline__ void
next_pages(page_stream_t &pages, const sm80_decode_params_t &params, int32_t left) {
    pages.lane += pages.step_lanes;
    if (pages.lane == DECODE_WARP_THREADS)
        next_lookup<C>(pages, params, left);
}

template <flash_config_t C>
static __device__ __forceinline__ void
start_pages(page_stream_t &pages, const sm80_decode_params_t &params, int32_t batch_index,
            int32_t step_keys, int32_t first, int32_t left) {
    const flash_params_t &p = params.attention;
    const int32_t lane = threadIdx.x % DECODE_WARP_THREADS;
    const int64_t first_id = flash_pages_first_id(&p.pages, batch_index);
    const bool whole_steps = p.pages.table == NULL || p.pages.page_size % C.B_c == 0;
    pages.slot = (int32_t)first_id;
    pages.k_ids = p.pages.table ? p.pages.table + first_id : NULL;
    pages.v_ids = p.pages.table ? p.pages.v_table + first_id : NULL;
    pages.step_lanes = whole_steps ? 1 : C.B_c;
    pages.lane_keys = whole_steps ? lane * step_keys : lane / C.B_c * step_keys + lane % C.B_c;
    pages.lookup_keys =
        step_keys * (whole_steps ? DECODE_WARP_THREADS : DECODE_WARP_THREADS / C.B_c);
    pages.key = first;
    fetch_ids<C>(pages, params, left);
    next_lookup<C>(pages, params, left);
}

#endif
