/*
 * This file says where a sequence's keys lie, with pages and without: those of K and of V.
 */
#ifndef FLASH_KERNELS_SM80_MLA_KEY_SOURCE_CUH
#define FLASH_KERNELS_SM80_MLA_KEY_SOURCE_CUH

#include "sm80/mla/walk.cuh"

/* These are the places of a sequence's keys in one tensor. */
typedef struct key_source {
    const char *head;   /* its first key, that of its slot, or the pool's first row */
    const int32_t *ids; /* of its pages; NULL: none, or a cache of slots */
    int32_t slot;
} key_source_t;

template <key_tensor T>
static __device__ __forceinline__ const flash_strides_t &tensor_stride(const flash_params_t &p) {
    return T == TENSOR_K ? p.k_stride : p.v_stride;
}

template <key_tensor T>
static __device__ __forceinline__ int32_t tensor_columns(const flash_params_t &p) {
    return T == TENSOR_K ? p.d_head : p.d_head_v;
}

template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ key_source_t find_key_source(const sm80_decode_params_t &params,
                                                               const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int32_t batch_index = block.piece.batch_index;
    const flash_kv_run_t run = has_pages<C> ? flash_kv_run_t{0, block.sequence.k_begin, 0, 0}
                                            : flash_kv_run(&block.sequence, batch_index, 0);
    const int64_t first = flash_kv_offset(&tensor_stride<T>(p), &run, block.first_head_kv);
    key_source_t source = {(const char *)(T == TENSOR_K ? p.k : p.v) + first * dtype_size(C.dtype),
                           NULL, 0};
    if constexpr (has_pages<C>) {
        const int64_t first_id = flash_pages_first_id(&p.pages, batch_index);
        const int32_t *const &table = T == TENSOR_K ? p.pages.table : p.pages.v_table;
        source.ids = table ? table + first_id : NULL;
        source.slot = (int32_t)first_id;
    }
    return source;
}

/* Loads the id of a key's page; without ids it is the slot. end: of the walk. */
static __device__ __forceinline__ int32_t fetch_id(const key_source_t &source,
                                                   const sm80_decode_params_t &params, int32_t key,
                                                   int32_t end) {
    int32_t id = source.slot;
    if (source.ids != NULL && key < end)
        id = __ldg(source.ids + flash_divide(key, params.by_page_size));
    return id;
}

/* Returns the bytes from the pool's first row to a key's; negative if there is no such row. */
template <key_tensor T>
static __device__ __forceinline__ int64_t paged_key_offset(const key_source_t &source,
                                                           const sm80_decode_params_t &params,
                                                           int32_t key, int32_t id,
                                                           int element_bytes) {
    const flash_params_t &p = params.attention;
    if (source.ids != NULL)
        key -= flash_divide(key, params.by_page_size) * p.pages.page_size;
    if ((uint32_t)id >= (uint32_t)p.pages.n_pages)
        return -1;
    return (id * tensor_stride<T>(p).batch + key * tensor_stride<T>(p).seq) * element_bytes;
}

/* Returns the bytes from source.head to a key; negative if there is none. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ int64_t key_offset(const key_source_t &source,
                                                     const sm80_decode_params_t &params,
                                                     int32_t key, int32_t end, int32_t id) {
    constexpr int element_bytes = dtype_size(C.dtype);
    if (key >= end)
        return -1;
    if constexpr (has_pages<C>)
        return paged_key_offset<T>(source, params, key, id, element_bytes);
    return key * tensor_stride<T>(params.attention).seq * element_bytes;
}

#endif
