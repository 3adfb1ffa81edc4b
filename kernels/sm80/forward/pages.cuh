/*
 * With K and V in pages, a thread finds the page of each key whose chunks it copies. The threads of
 * a row load the same id, which the first-level cache keeps. Keys past the sequence's end, and with
 * a page id out of range, become zeros without a read. With async_copy whole chunks are copied
 * asynchronously; without, through registers, from any alignment.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_PAGES_CUH
#define FLASH_KERNELS_SM80_FORWARD_PAGES_CUH

#include "common/page_holes.cuh"
#include "sm80/forward/load.cuh"

/* K or V of one head of one sequence, from a block of keys backwards. */
typedef struct page_source {
    const char *head;   /* the thread's first chunk in the head's first row of the pool, or in a
                           slot's first key */
    const int32_t *ids; /* of the sequence; NULL: a cache of slots */
    const int32_t *hole_ids; /* say where V has no page, too; NULL: none do */
    const flash_pages_t *pages;
    const flash_strides_t *stride;
    int32_t slot;
    int32_t key;    /* the key of the thread's first row in the block */
    int32_t len_k;  /* of the sequence */
    int32_t column; /* the thread's first one */
    int32_t d_head; /* columns that exist */
    bool aligned;   /* rows consist of whole, aligned chunks */
} page_source_t;

template <flash_config_t C>
using kv_source_of = std::conditional_t<has_pages<C>, page_source_t, row_source_t>;

/* Makes the source of the block from first_key on. d_head, table: of K, or of V. */
template <flash_config_t C>
static __device__ __forceinline__ page_source_t make_page_source(
    const flash_params_t &p, const void *data, const flash_strides_t &stride, int32_t d_head,
    const int32_t *table, const query_tile_t &tile, int32_t first_key) {
    const int64_t first_id = flash_pages_first_id(&p.pages, tile.batch_index);
    const int64_t first =
        tile.head / p.group * stride.head + tile.sequence.k_begin * stride.seq + copy_column<C>();
    page_source_t source;
    source.head = (const char *)data + first * kv_element_bytes<C>;
    source.ids = table ? table + first_id : NULL;
    source.pages = &p.pages;
    source.stride = &stride;
    source.hole_ids = NULL;
    if constexpr (hides_holes<C>)
        source.hole_ids = hole_ids_of_v(p, table, first_id);
    source.slot = (int32_t)first_id;
    source.key = first_key + copy_row<C>();
    source.len_k = tile.sequence.len_k;
    source.column = copy_column<C>();
    source.d_head = d_head;
    source.aligned = chunks_aligned<C, kv_element_bytes<C>>(
        source.head, (stride.batch | stride.seq) * kv_element_bytes<C>, d_head);
    return source;
}

/* Returns the bytes from source.head to the row of a key; negative if there is no such row. */
template <flash_config_t C>
static __device__ __forceinline__ int64_t page_row_offset(const page_source_t &source,
                                                          int32_t key) {
    if (key >= source.len_k)
        return -1;
    const int32_t page = flash_kv_page_of(source.pages, key);
    const int32_t id = source.ids ? __ldg(source.ids + page) : source.slot;
    if ((uint32_t)id >= (uint32_t)source.pages->n_pages)
        return -1;
    if (source.hole_ids != NULL && __ldg(source.hole_ids + page) < 0)
        return -1;
    const int32_t in_page = key - page * source.pages->page_size;
    return (id * source.stride->batch + in_page * source.stride->seq) * kv_element_bytes<C>;
}

/* Starts to copy a block of ROWS keys; missing ones become zeros. */
template <flash_config_t C, int ROWS>
static __device__ __forceinline__ void copy_pages(uint32_t shared, const page_source_t &source) {
    constexpr int passes = ROWS / pass_rows<C>;
    const uint32_t target = shared + chunk_offset<C>(copy_row<C>(), threadIdx.x % panel_chunks<C>);
    int64_t offset[passes];
#pragma unroll
    for (int i = 0; i < passes; ++i)
        offset[i] = page_row_offset<C>(source, source.key + i * pass_rows<C>);
#pragma unroll
    for (int i = 0; i < passes; ++i)
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel)
            async_copy_or_zero(target + i * pass_rows<C> * row_bytes<C> + panel * panel_bytes<C>,
                               source.head + max((long long)offset[i], 0ll) +
                                   panel * panel_bytes<C>,
                               offset[i] >= 0 && existing_columns<C>(source, panel) > 0);
}

/* Copies a block through registers, e4m3 as fp16; missing keys become zeros. */
template <flash_config_t C, int ROWS>
static __device__ __forceinline__ void copy_pages_through_registers(uint32_t shared,
                                                                    const page_source_t &source) {
    constexpr int bytes = kv_element_bytes<C>;
    const uint32_t target = shared + chunk_offset<C>(copy_row<C>(), threadIdx.x % panel_chunks<C>);
    const row_source_t row = {.aligned = source.aligned};
#pragma unroll 2
    for (int i = 0; i < ROWS; i += pass_rows<C>) {
        const int64_t offset = page_row_offset<C>(source, source.key + i);
        uint4 chunk[row_panels<C>];
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel)
            chunk[panel] = load_chunk<C, bytes>(
                row, source.head + offset + panel * global_panel_bytes<C, bytes>,
                offset >= 0 ? existing_columns<C>(source, panel) : 0);
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel)
            shared_store(target + i * row_bytes<C> + panel * panel_bytes<C>, chunk[panel]);
    }
}

template <int ROWS> static __device__ __forceinline__ void step_back(page_source_t &source) {
    source.key -= ROWS;
}

template <int ROWS>
static __device__ __forceinline__ void step_over(page_source_t &source, int32_t n) {
    source.key -= n * ROWS;
}

#endif
