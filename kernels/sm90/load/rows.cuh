/*
 * Blocks of keys in pages are copied row by row. Each lane finds where every 32nd row of a block
 * lies. Then the warp copies four rows at a time, each lane a chunk of each panel, to where TMA
 * would write it. A row without a key becomes zeros, and no memory is read for it.
 *
 * The rows of a block arrive while those of the next are copied. Its waiters hear of them after
 * that, or when the next stage is not free yet.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_ROWS_CUH
#define FLASH_KERNELS_SM90_LOAD_ROWS_CUH

#include "common/ptx/async_copy.cuh"
#include "common/ptx/opaque.cuh"
#include "sm90/load/pages.cuh"

constexpr int chunks_of_panel_row = SM90_PANEL_BYTES / SM90_CHUNK_BYTES;
constexpr int rows_together = warp_threads / chunks_of_panel_row;
constexpr int row_groups = warp_threads / rows_together; /* of the rows that lanes know at a time */
constexpr int groups_at_once = 4; /* whose addresses are in registers together */

/* These are the pool's tokens that every 32nd row of a block is, counted from the pool's first;
 * negative: a row without a key. */
template <flash_config_t C> constexpr int lane_rows = (C.B_c + warp_threads - 1) / warp_threads;
template <flash_config_t C> struct row_tokens { int32_t of[lane_rows<C>]; };

/* Returns the first of the lane's rows. Eight lanes copy the same row of each group. One of them,
 * whose number among the eight is that of the group, tells the others where it lies. */
static __device__ __forceinline__ int32_t lane_row() {
    return (int32_t)lane_index() % row_groups * rows_together + (int32_t)lane_index() / row_groups;
}

typedef struct row_loader {
    uint32_t full; /* of the block whose rows are on their way; 0: none are */
} row_loader_t;

/* Brings the page ids of the block that begins with a key into the first-level cache; negative:
 * there is no such block. Pages are so small that ids of every few rows touch every line. */
template <flash_config_t C>
static __device__ __forceinline__ void fetch_ids(const paged_tensor_t &tensor, int32_t begin,
                                                 row_loader_t &) {
    const int32_t key = begin + (int32_t)lane_index() * lane_rows<C>;
    if (begin >= 0 && key < tensor.len_k && tensor.ids != NULL)
        prefetch_page_id(tensor, key);
}

/* Loads the ids of the lane's rows in pages of one token, all of which have a key. */
template <flash_config_t C>
static __device__ __forceinline__ row_tokens<C> load_ids(const paged_tensor_t &tensor,
                                                         int32_t begin) {
    const int32_t *ids = tensor.ids + (begin + lane_row());
    row_tokens<C> rows;
#pragma unroll
    for (int i = 0; i < lane_rows<C>; ++i)
        rows.of[i] = __ldg(ids + i * warp_threads);
#pragma unroll
    for (int i = 0; i < lane_rows<C>; ++i)
        rows.of[i] = is_page(tensor, rows.of[i]) ? rows.of[i] * tensor.pool.entry_tokens : -1;
    return rows;
}

/* Finds the lane's rows in pages of any size. */
template <flash_config_t C>
static __device__ __forceinline__ row_tokens<C> find_rows(const paged_tensor_t &tensor,
                                                          int32_t begin) {
    row_tokens<C> rows;
#pragma unroll
    for (int i = 0; i < lane_rows<C>; ++i) {
        const int32_t row = i * warp_threads + lane_row(), key = begin + row;
        rows.of[i] = row < C.B_c && key < tensor.len_k ? fetch_page_id(tensor, key) : -1;
    }
#pragma unroll
    for (int i = 0; i < lane_rows<C>; ++i) {
        const int32_t key = begin + i * warp_threads + lane_row();
        const int32_t page = flash_divide(key, tensor.paging->by_page_size);
        const int32_t at = key - page * tensor.problem->pages.page_size;
        rows.of[i] = is_page(tensor, rows.of[i]) ? rows.of[i] * tensor.pool.entry_tokens + at : -1;
    }
    return rows;
}

/* Starts to copy the lane's chunks of a few groups of rows. WHOLE: all rows have a key, and all
 * columns exist. tokens: of 32 rows; to: where the lane's chunk of the first row goes. */
template <flash_config_t C, bool WHOLE>
static __device__ __forceinline__ void copy_groups(const paged_tensor_t &tensor, const char *from,
                                                   int32_t columns, int32_t tokens, int first_group,
                                                   uint32_t to) {
    int32_t token[groups_at_once];
    const char *chunk[groups_at_once];
#pragma unroll
    for (int i = 0; i < groups_at_once; ++i)
        token[i] = __shfl_sync(0xffffffffu, tokens, first_group + i, row_groups);
#pragma unroll
    for (int i = 0; i < groups_at_once; ++i)
        chunk[i] = opaque(from + (uint64_t)(uint32_t)token[i] * tensor.pool.token_bytes);
#pragma unroll
    for (int i = 0; i < groups_at_once; ++i) {
        const int first_row = (first_group + i) * rows_together;
        const uint32_t shared = (to ^ first_row % chunks_of_panel_row * SM90_CHUNK_BYTES) +
                                first_row * SM90_PANEL_BYTES;
#pragma unroll
        for (int panel = 0; panel < landing_panels<C>; ++panel)
            async_copy_or_zero(shared + panel * kv_panel_bytes<C>,
                               chunk[i] + panel * SM90_PANEL_BYTES,
                               WHOLE || (token[i] >= 0 && panel * landing_columns<C> < columns));
    }
}

/* Starts to copy the rows of a block into the stage at `shared`. */
template <flash_config_t C, bool WHOLE>
static __device__ __forceinline__ void copy_rows(const paged_tensor_t &tensor, row_tokens<C> rows,
                                                 uint32_t shared) {
    const int row = lane_index() / chunks_of_panel_row;
    const int chunk = lane_index() % chunks_of_panel_row;
    const int32_t columns =
        tensor.problem->d_head - chunk * (SM90_CHUNK_BYTES / kv_element_bytes<C>);
    const char *const from = opaque(tensor.head + chunk * SM90_CHUNK_BYTES);
    uint32_t to =
        shared + landing_offset<C> + row * SM90_PANEL_BYTES + (chunk ^ row) * SM90_CHUNK_BYTES;
#pragma unroll 1
    for (int i = 0; i < lane_rows<C>; ++i, to += warp_threads * SM90_PANEL_BYTES) {
#pragma unroll(WHOLE ? row_groups / groups_at_once : 1)
        for (int group = 0; group < row_groups; group += groups_at_once)
            if (C.B_c % warp_threads == 0 || i * warp_threads + group * rows_together < C.B_c)
                copy_groups<C, WHOLE>(tensor, from, columns, rows.of[0], group, to);
#pragma unroll
        for (int next = 1; next < lane_rows<C>; ++next)
            rows.of[next - 1] = rows.of[next];
    }
}

/* Says whether all rows have a key and all columns exist. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_whole(const paged_tensor_t &tensor,
                                                const row_tokens<C> &rows) {
    int32_t all = tensor.problem->d_head == C.d_head && C.B_c % warp_threads == 0 &&
                          C.d_head % landing_columns<C> == 0
                      ? 0
                      : -1;
#pragma unroll
    for (int i = 0; i < lane_rows<C>; ++i)
        all |= rows.of[i];
    return __all_sync(0xffffffffu, all >= 0);
}

/* Waits for the warp's copies but those of the last N blocks, and hands a block on. */
template <int N> static __device__ __forceinline__ void hand_on_rows(uint32_t full) {
    async_copy_wait_all_but<N>();
    async_proxy_fence();
    __syncwarp();
    mbarrier_arrive_once_if(full, true);
}

/* Waits for the block that is still on its way, and hands it on. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_blocks(row_loader_t &loader) {
    if (loader.full != 0)
        hand_on_rows<0>(loader.full);
    loader.full = 0;
}

/* Loads the block that begins with a key, and fetches the ids of the block that begins with
 * next_begin; negative: there is none. */
template <flash_config_t C>
static __device__ __forceinline__ void load_block(const paged_tensor_t &tensor, int32_t begin,
                                                  int32_t next_begin, row_loader_t &loader,
                                                  const stage_to_fill_t &to) {
    const bool is_one_token = tensor.problem->pages.page_size == 1 && tensor.ids != NULL;
    const row_tokens<C> rows =
        is_one_token && C.B_c % warp_threads == 0 && begin + C.B_c <= tensor.len_k
            ? load_ids<C>(tensor, begin)
            : find_rows<C>(tensor, begin);
    fetch_ids<C>(tensor, next_begin, loader);
    if (!mbarrier_is_complete(to.empty, to.parity ^ 1)) {
        finish_blocks<C>(loader);
        mbarrier_wait(to.empty, to.parity ^ 1);
    }
    if (is_whole<C>(tensor, rows))
        copy_rows<C, true>(tensor, rows, to.shared);
    else
        copy_rows<C, false>(tensor, rows, to.shared);
    async_copy_commit();
    if (loader.full != 0)
        hand_on_rows<1>(loader.full);
    loader.full = to.full;
}

#endif
