/*
 * Blocks of keys in pages are copied row by row. Each lane finds where every 32nd row of a block
 * lies. Then the warp copies eight rows at a time, four lanes per row, to where TMA would write
 * them. A row without a key becomes zeros, and no memory is read for it.
 *
 * The loading warp issues few instructions beside the products of the consumers, and they limit how
 * fast it loads: the address of a row serves four copies per lane, and nobody waits here for the
 * copies, the last of which hands the block on.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_ROWS_CUH
#define FLASH_KERNELS_SM90_LOAD_ROWS_CUH

#include "common/ptx/async_copy.cuh"
#include "common/ptx/opaque.cuh"
#include "sm90/load/pages.cuh"

constexpr int row_lanes = 4; /* copy a row, each the same chunk of every half panel */
constexpr int half_panel_bytes = row_lanes * SM90_CHUNK_BYTES;
constexpr int rows_together = warp_threads / row_lanes;
constexpr int row_groups = warp_threads / rows_together; /* of the rows that lanes know at a time */

/* These are the pool's tokens that every 32nd row of a block is, counted from the pool's first;
 * negative: a row without a key. */
template <flash_config_t C> constexpr int lane_rows = (C.B_c + warp_threads - 1) / warp_threads;
template <flash_config_t C> struct row_tokens { int32_t of[lane_rows<C>]; };

/* Returns the row of each group that a lane copies a part of. Rows of the same eight lanes are four
 * apart, so that their chunks, which are swizzled, go to different banks of shared memory. */
static __device__ __forceinline__ int32_t row_of_group() {
    const int32_t number = (int32_t)lane_index() / row_lanes;
    return number / 2 + number % 2 * (rows_together / 2);
}

/* Returns the first of the rows whose place the lane finds. Of the lanes that copy a row of each
 * group, one knows where it lies, and tells the others: that whose number is the group's. */
static __device__ __forceinline__ int32_t lane_row() {
    return (int32_t)lane_index() % row_lanes * rows_together + row_of_group();
}

/* Says whether the block has the i-th of the lane's rows. */
template <flash_config_t C> static __device__ __forceinline__ bool has_row(int i) {
    return C.B_c % warp_threads == 0 || i * warp_threads + lane_row() < C.B_c;
}

/* Nothing is kept from one block to the next. */
typedef struct row_loader {
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

/* Loads the ids of the lane's rows in pages of one token. There are keys for all of them, and for
 * those that the lane would have behind the block's last row. */
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
        const int32_t key = begin + i * warp_threads + lane_row();
        rows.of[i] = has_row<C>(i) && key < tensor.len_k ? fetch_page_id(tensor, key) : -1;
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

/* Counts the columns of a row, in elements of memory; of a latent token, the bytes that land. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ int32_t copied_columns(const flash_params_t &p) {
    return is_latent<C> ? landing_panels<C, T> * landing_columns<C> : columns_in_memory<T>(p);
}

/* A lane copies its chunks from and to these places. */
typedef struct lane_copy {
    const char *from;     /* the lane's first chunk of the pool's first token */
    uint32_t token_bytes; /* between tokens of the pool */
    int32_t columns;      /* from the lane's first chunk on */
    uint32_t to[2];       /* its chunks of the first panel in the block's first row */
} lane_copy_t;

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ lane_copy_t lane_copy(const paged_tensor_t &tensor,
                                                        uint32_t shared) {
    const int row = row_of_group(), chunk = lane_index() % row_lanes;
    const uint32_t to =
        shared + landing_offset<C, T> + row * SM90_PANEL_BYTES + (chunk ^ row) * SM90_CHUNK_BYTES;
    return {opaque(tensor.head + chunk * SM90_CHUNK_BYTES),
            opaque(tensor.pool.token_bytes),
            copied_columns<C, T>(*tensor.problem) -
                chunk * (SM90_CHUNK_BYTES / kv_element_bytes<C>),
            {to, to ^ half_panel_bytes}};
}

/* Starts to copy the lane's chunks of a row, which are those of a token. WHOLE: the row has a key,
 * and all columns exist. */
template <flash_config_t C, kv_tensor T, bool WHOLE>
static __device__ __forceinline__ void copy_row(const lane_copy_t &lane, int32_t token, int row) {
    constexpr int half_columns = half_panel_bytes / kv_element_bytes<C>;
    constexpr auto byte_of_half = [](int half) {
        return landing_byte<C>(half / 2) + half % 2 * half_panel_bytes;
    };
    const char *const from = lane.from + (uint64_t)(uint32_t)token * lane.token_bytes;
#pragma unroll
    for (int half = 0; half < 2 * landing_panels<C, T>; ++half)
        async_copy_or_zero(
            lane.to[half % 2] + row * SM90_PANEL_BYTES + half / 2 * kv_panel_bytes<C>,
            from + byte_of_half(half), WHOLE || (token >= 0 && half * half_columns < lane.columns));
}

/* WHOLE: as of copy_row(). */
template <flash_config_t C, kv_tensor T, bool WHOLE>
static __device__ __forceinline__ void copy_rows(const paged_tensor_t &tensor, row_tokens<C> rows,
                                                 uint32_t shared) {
    constexpr int unrolled = WHOLE ? lane_rows<C> : 1;
    const lane_copy_t lane = lane_copy<C, T>(tensor, shared);
#pragma unroll(unrolled)
    for (int first = 0; first < C.B_c; first += warp_threads) {
#pragma unroll
        for (int group = 0; group < row_groups; ++group) {
            const int row = first + group * rows_together;
            if (row < C.B_c)
                copy_row<C, T, WHOLE>(lane, __shfl_sync(0xffffffffu, rows.of[0], group, row_lanes),
                                      row);
        }
#pragma unroll
        for (int next = 1; next < lane_rows<C>; ++next)
            rows.of[next - 1] = rows.of[next];
    }
}

/* Says whether all rows of the block have a key and all columns exist. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ bool is_whole(const paged_tensor_t &tensor,
                                                const row_tokens<C> &rows) {
    constexpr int most = landing_panels<C, T> * landing_columns<C>;
    constexpr bool fills_panels = is_latent<C> || kv_columns<C, T> == most;
    const bool has_columns = fills_panels && copied_columns<C, T>(*tensor.problem) == most;
    int32_t all = has_columns ? 0 : -1;
#pragma unroll
    for (int i = 0; i < lane_rows<C>; ++i)
        all |= has_row<C>(i) ? rows.of[i] : 0;
    return __all_sync(0xffffffffu, all >= 0);
}

/* The last of the copies hands a block on. */
template <flash_config_t C> static __device__ __forceinline__ void finish_blocks(row_loader_t &) {
}

/* Finds where the rows of the block that begins with a key lie. */
template <flash_config_t C>
static __device__ __forceinline__ row_tokens<C> find_block_rows(const paged_tensor_t &tensor,
                                                                int32_t begin) {
    constexpr int32_t looked_up = lane_rows<C> * warp_threads;
    const bool is_one_token =
        tensor.problem->pages.page_size == 1 && tensor.ids != NULL && tensor.hole_ids == NULL;
    return is_one_token && begin + looked_up <= tensor.len_k ? load_ids<C>(tensor, begin)
                                                             : find_rows<C>(tensor, begin);
}

/* Starts to copy the rows of a block into the stage at `shared`. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void copy_block_rows(const paged_tensor_t &tensor,
                                                       const row_tokens<C> &rows, uint32_t shared) {
    if (is_whole<C, T>(tensor, rows))
        copy_rows<C, T, true>(tensor, rows, shared);
    else
        copy_rows<C, T, false>(tensor, rows, shared);
}

/* Has the copies so far arrive at a barrier when they are complete. */
static __device__ __forceinline__ void hand_on_rows(uint32_t barrier) {
    async_copy_arrive(barrier);
    __syncwarp();
    mbarrier_arrive_once_if(barrier, true);
}

/* Loads the block that begins with a key, and fetches the ids of the block that begins with
 * next_begin; negative: there is none. */
template <flash_config_t C, kv_tensor T, typename STAGE>
static __device__ __forceinline__ void load_block(const paged_tensor_t &tensor, int32_t begin,
                                                  int32_t next_begin, row_loader_t &loader,
                                                  const STAGE &to) {
    const row_tokens<C> rows = find_block_rows<C>(tensor, begin);
    fetch_ids<C>(tensor, next_begin, loader);
    mbarrier_wait(to.empty, to.parity ^ 1);
    tell_holes<C>(tensor, begin, to);
    copy_block_rows<C, T>(tensor, rows, to.shared);
    hand_on_rows(to.full);
}

#endif
