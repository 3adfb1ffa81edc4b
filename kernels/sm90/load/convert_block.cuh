/*
 * A warpgroup makes fp16 of a block of keys of e4m3. The bytes arrive in the last panels of the
 * stage that the block is to fill, 128 columns of a key in a row, swizzled:
 *
 *     a stage, d_head 256     | panel 0      | panel 1       | panel 2       | panel 3       |
 *     arrives                 |              |               | columns 0 ... | columns 128 ..|
 *     leaves                  | columns 0 .. | columns 64 .. | columns 128 ..| columns 192 ..|
 *
 * Elements of a key come from rows of the key's own number and go to such rows. So each warp has
 * rows of its own, and needs no other: it loads the bytes of some rows of a panel, left panels
 * first, and when all lanes have theirs, stores elements over them.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_CONVERT_BLOCK_CUH
#define FLASH_KERNELS_SM90_LOAD_CONVERT_BLOCK_CUH

#include "common/non_finite.cuh"
#include "common/ptx/e4m3.cuh"
#include "sm90/block_state.cuh"

/* Constants of K serve V too, because both have d_head columns in rows that are converted.
 *
 * A warp takes whole rows of a panel at a time, a chunk of sixteen elements per lane, and has a
 * quarter of the block's rows. It loads several chunks before it stores. */
template <flash_config_t C> constexpr int row_byte_chunks = C.d_head == 64 ? 4 : 8;
template <flash_config_t C> constexpr int converted_at_once = warp_threads / row_byte_chunks<C>;
template <flash_config_t C> constexpr int converter_rows = C.B_c / warpgroup_warps;
template <flash_config_t C> constexpr int lane_chunks = converter_rows<C> / converted_at_once<C>;
template <flash_config_t C>
constexpr int batch_chunks = lane_chunks<C> % 4 == 0   ? 4
                             : lane_chunks<C> % 2 == 0 ? 2
                                                       : 1;

/* The lane's first chunk of a block arrives and goes here, counted from the beginning of the stage,
 * in the leftmost panels. */
typedef struct chunk_offsets {
    uint32_t from;
    uint32_t to;
} chunk_offsets_t;

/* Eight lanes, whose accesses go together, have four chunks next to each other of one row, and four
 * of another, whose number differs in such bits that the eight touch all banks once, when they load
 * and when they store. */
template <flash_config_t C> static __device__ __forceinline__ chunk_offsets_t lane_offsets() {
    constexpr int between_rows = C.d_head == 64 ? 5 : 1;
    const int lane = threadIdx.x % warp_threads;
    const int warp = threadIdx.x / warp_threads % warpgroup_warps;
    const int chunk = lane % row_byte_chunks<C>;
    const int row_in_eight = lane / 8 ^ lane / 4 % 2 * between_rows;
    const uint32_t row = (warp * converter_rows<C> + row_in_eight) * SM90_PANEL_BYTES;
    return {landing_offset<C, TENSOR_K> + row + (chunk ^ row_in_eight) * SM90_CHUNK_BYTES,
            chunk / 4 * kv_panel_bytes<C> + row +
                (chunk % 4 * 2 ^ row_in_eight) * SM90_CHUNK_BYTES};
}

/* Returns the address of the lane's i-th chunk, where that of the first one is `first`. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t lane_chunk(uint32_t first, int i) {
    const int rows = i * converted_at_once<C>;
    return (first ^ rows % 8 * SM90_CHUNK_BYTES) + rows * SM90_PANEL_BYTES;
}

/* Stores eight elements. */
static __device__ __forceinline__ void store_eight(uint32_t shared, uint32_t low, uint32_t high) {
    const e4m3_pairs_t a = fp16_from_e4m3(low), b = fp16_from_e4m3(high);
    shared_store(shared, uint4{a.low, a.high, b.low, b.high});
}

/* Half of the columns that land in the last panel are past d_head, and leave for nowhere. */
template <flash_config_t C>
constexpr bool lands_half_panel =
    C.d_head > landing_columns<C> &&C.d_head % landing_columns<C> != 0;

/* Says whether what the lane converts of a panel belongs to columns of the block. */
template <flash_config_t C> static __device__ __forceinline__ bool has_columns(int panel) {
    return !lands_half_panel<C> || panel + 1 < landing_panels<C, TENSOR_K> ||
           threadIdx.x % row_byte_chunks<C> < row_byte_chunks<C> / 2;
}

/* Converts a batch of the lane's chunks of a panel, the first of which are at `from` and `to`: each
 * becomes two chunks, whose places differ in the lowest bit. They are stored if `stores` is true.
 * With `sanitise` NaNs become zeros; returns whether there were some. */
template <flash_config_t C>
static __device__ __forceinline__ bool convert_batch(uint32_t from, uint32_t to, bool stores,
                                                     bool sanitise) {
    uint4 bytes[batch_chunks<C>];
    uint32_t nans = 0;
#pragma unroll
    for (int i = 0; i < batch_chunks<C>; ++i)
        bytes[i] = shared_load(lane_chunk<C>(from, i));
    if (has_mask<C> && sanitise)
#pragma unroll
        for (int i = 0; i < batch_chunks<C>; ++i) {
            nans = add_zero_times_chunk<C.dtype>(nans, bytes[i]);
            bytes[i] = finite_chunk<C.dtype>(bytes[i]);
        }
    __syncwarp();
    if (!stores)
        return nans != 0;
#pragma unroll
    for (int i = 0; i < batch_chunks<C>; ++i) {
        const uint32_t chunk = lane_chunk<C>(to, i);
        store_eight(chunk, bytes[i].x, bytes[i].y);
        store_eight(chunk ^ SM90_CHUNK_BYTES, bytes[i].z, bytes[i].w);
    }
    return nans != 0;
}

/* Converts the warp's rows of a panel of the block that has landed in the stage at `shared`. */
template <flash_config_t C>
static __device__ __forceinline__ bool
convert_panel(uint32_t shared, int panel, const chunk_offsets_t &offsets, bool sanitise) {
    constexpr uint32_t batch_rows = batch_chunks<C> * converted_at_once<C>;
    static_assert(batch_rows % 8 == 0, "a lane's places in every batch share one swizzle");
    const uint32_t from = shared + offsets.from + panel * kv_panel_bytes<C>;
    const uint32_t to = shared + offsets.to + 2 * panel * kv_panel_bytes<C>;
    bool found = false;
#pragma unroll 1
    for (uint32_t row = 0; row < converter_rows<C>; row += batch_rows)
        found |= convert_batch<C>(from + row * SM90_PANEL_BYTES, to + row * SM90_PANEL_BYTES,
                                  has_columns<C>(panel), sanitise);
    return found;
}

/* Converts the warp's rows of a block. */
template <flash_config_t C>
static __device__ __forceinline__ bool convert_block(uint32_t shared, bool sanitise) {
    const chunk_offsets_t offsets = lane_offsets<C>();
    bool found = false;
#pragma unroll 1
    for (int panel = 0; panel < landing_panels<C, TENSOR_K>; ++panel)
        found |= convert_panel<C>(shared, panel, offsets, sanitise);
    async_proxy_fence();
    return __any_sync(0xffffffffu, found);
}

#endif
