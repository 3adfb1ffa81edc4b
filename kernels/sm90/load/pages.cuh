/*
 * This file finds where the keys of a block lie in pages. One warp loads the blocks of K and
 * another those of V, in one of two ways: by TMA, in boxes that lie in one page each
 * (load/page_boxes.cuh), or row by row where boxes would be short (load/rows.cuh).
 */
#ifndef FLASH_KERNELS_SM90_LOAD_PAGES_CUH
#define FLASH_KERNELS_SM90_LOAD_PAGES_CUH

#include "common/page_holes.cuh"
#include "sm90/block_state.cuh"
#include "sm90/ptx/tma.cuh"

/* This is K or V of all sequences, in pages. */
typedef struct page_pool {
    const sm90_tensor_map_t *map;
    const void *data;
    const flash_strides_t *stride;
    const int32_t *table; /* NULL: a cache of slots */
    uint32_t token_bytes;
    int32_t entry_tokens;
} page_pool_t;

/* Returns the pool of K. params: of a kernel of either family, SM90 or SM90_DECODE; p: its
 * problem. */
template <typename PARAMS>
static __device__ __forceinline__ page_pool_t k_pool(const PARAMS &params,
                                                     const flash_params_t &p) {
    return {&params.k,
            p.k,
            &p.k_stride,
            p.pages.table,
            params.paging.k_token_bytes,
            params.entry_tokens.k};
}

/* Returns the pool of V. */
template <typename PARAMS>
static __device__ __forceinline__ page_pool_t v_pool(const PARAMS &params,
                                                     const flash_params_t &p) {
    return {&params.v,
            p.v,
            &p.v_stride,
            p.pages.v_table,
            params.paging.v_token_bytes,
            params.entry_tokens.v};
}

/* This is K or V of one sequence and one head. */
typedef struct paged_tensor {
    page_pool_t pool;
    const char *head; /* of the pool's first token; of a slot's first key */
    const flash_params_t *problem;
    const sm90_paging_t *paging;
    const int32_t *ids;      /* of the sequence; NULL: a cache of slots */
    const int32_t *hole_ids; /* say where V has no page, too; NULL: none do */
    int32_t slot;
    int32_t k_begin; /* first key of a slot; 0 with ids */
    int32_t len_k;
    int32_t head_kv;
    uint64_t hint; /* to L2, of what TMA loads */
} paged_tensor_t;

template <flash_config_t C>
static __device__ __forceinline__ paged_tensor_t find_pages(const flash_params_t &p,
                                                            const sm90_paging_t &paging,
                                                            const page_pool_t &pool,
                                                            int32_t batch_index, int32_t k_begin,
                                                            int32_t len_k, int32_t head_kv,
                                                            uint64_t hint = l2_evict_last) {
    const int64_t first_id = flash_pages_first_id(&p.pages, batch_index);
    paged_tensor_t tensor;
    tensor.pool = pool;
    tensor.head = (const char *)pool.data +
                  (head_kv * pool.stride->head + k_begin * pool.stride->seq) * kv_element_bytes<C>;
    tensor.problem = &p;
    tensor.paging = &paging;
    tensor.ids = pool.table ? pool.table + first_id : NULL;
    tensor.hole_ids = NULL;
    if constexpr (hides_holes<C>)
        tensor.hole_ids = hole_ids_of_v(p, pool.table, first_id);
    tensor.slot = (int32_t)first_id;
    tensor.k_begin = k_begin;
    tensor.len_k = len_k;
    tensor.head_kv = head_kv;
    tensor.hint = hint;
    return tensor;
}

/* Starts to load the id of the page that a key of the sequence lies in. */
static __device__ __forceinline__ int32_t fetch_page_id(const paged_tensor_t &tensor, int32_t key) {
    if (tensor.ids == NULL)
        return tensor.slot;
    const int32_t page = flash_divide(key, tensor.paging->by_page_size);
    if (tensor.hole_ids != NULL && __ldg(tensor.hole_ids + page) < 0)
        return -1;
    return __ldg(tensor.ids + page);
}

/* Brings that id into the first-level cache; the sequence has ids. */
static __device__ __forceinline__ void prefetch_page_id(const paged_tensor_t &tensor, int32_t key) {
    const int32_t *id = tensor.ids + flash_divide(key, tensor.paging->by_page_size);
    asm volatile("prefetch.global.L1 [%0];\n" ::"l"(id) : "memory");
}

static __device__ __forceinline__ bool is_page(const paged_tensor_t &tensor, int32_t id) {
    return (uint32_t)id < (uint32_t)tensor.problem->pages.n_pages;
}

/* Returns the columns that K or V has in memory, which may be fewer than those of its tiles. */
template <kv_tensor T>
static __device__ __forceinline__ int32_t columns_in_memory(const flash_params_t &p) {
    return T == TENSOR_K ? p.d_head : p.d_head_v;
}

/* ---- Holes. The warp that loads K tells consumers which keys of a block lie in them. ---- */

/* Finds the holes of the block of K that begins with a key, one bit for each key; all lanes have
 * them. Keys that do not exist have the bit of the last one. */
template <flash_config_t C>
static __device__ __forceinline__ block_holes_t find_block_holes(const paged_tensor_t &tensor,
                                                                 int32_t begin) {
    const hole_ids_t ids = {tensor.ids, tensor.len_k - 1};
    block_holes_t holes = {};
#pragma unroll
    for (int i = 0; i < (C.B_c + 31) / 32; ++i)
        holes.words[i] = find_holes(ids, begin + 32 * i, [&](int32_t key) {
            return flash_divide(key, tensor.paging->by_page_size);
        });
    return holes;
}

/* This is a stage of a ring, about to be filled. */
typedef struct stage_to_fill {
    uint32_t shared;
    uint32_t full;
    uint32_t empty;
    uint32_t parity; /* of full */
} stage_to_fill_t;

/* This is one of K, of which consumers are told the holes. */
typedef struct k_stage_to_fill : stage_to_fill_t {
    uint32_t *holes; /* words */
} k_stage_to_fill_t;

/* Tells the holes of the block that begins with a key, before the warp hands it on. words: those of
 * its stage, which is free. */
template <flash_config_t C>
static __device__ __forceinline__ void tell_holes(const paged_tensor_t &tensor, int32_t begin,
                                                  uint32_t *words) {
    if constexpr (hides_holes<C>) {
        if (!tensor.problem->bias.has_page_holes)
            return;
        const block_holes_t holes = find_block_holes<C>(tensor, begin);
        if (lane_index() == 0)
#pragma unroll
            for (int i = 0; i < (C.B_c + 31) / 32; ++i)
                ((volatile uint32_t *)words)[i] = holes.words[i];
    }
}

/* Does so for a stage of K; for others nothing. */
template <flash_config_t C>
static __device__ __forceinline__ void tell_holes(const paged_tensor_t &, int32_t,
                                                  const stage_to_fill_t &) {
}

template <flash_config_t C>
static __device__ __forceinline__ void tell_holes(const paged_tensor_t &tensor, int32_t begin,
                                                  const k_stage_to_fill_t &to) {
    tell_holes<C>(tensor, begin, to.holes);
}

/* Returns a stage with the words of its holes, if it is one of K and consumers hide these. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ auto with_holes(const stage_to_fill_t &stage, int number) {
    if constexpr (T == TENSOR_K && hides_holes<C>)
        return k_stage_to_fill_t{stage, holes_of_stage<C>(number)};
    else
        return stage;
}

#endif
