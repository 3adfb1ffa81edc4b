/*
 * The converter is a warpgroup of its own: it makes fp16 of the blocks of K and V of e4m3, and
 * hands them on to the consumers, which multiply them as any other. The bytes arrive in the last
 * panels of the stage that the block is to fill, 128 columns of a key in a row, swizzled:
 *
 *     a stage, d_head 256     | panel 0      | panel 1       | panel 2       | panel 3       |
 *     arrives                 |              |               | columns 0 ... | columns 128 ..|
 *     leaves                  | columns 0 .. | columns 64 .. | columns 128 ..| columns 192 ..|
 *
 * Elements of a key come from rows of the key's own number and go to such rows. So each warp has
 * rows of its own, and needs no other: it loads the bytes of some rows of a panel, left panels
 * first, and when all lanes have theirs, stores elements over them.
 *
 * Under a mask it zeroes NaNs of V in the blocks that are cut, as load/sanitise_v.cuh says.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_CONVERT_KV_CUH
#define FLASH_KERNELS_SM90_LOAD_CONVERT_KV_CUH

#include "common/non_finite.cuh"
#include "common/ptx/e4m3.cuh"
#include "sm90/load/convert_q.cuh"
#include "sm90/schedule/schedule.cuh"

typedef struct converter {
    ring_t q;
    ring_t k;
    ring_t v;
} converter_t;

/* Constants of K serve V too, because both have d_head columns in rows that are converted.
 *
 * A warp takes whole rows of a panel at a time, a chunk of sixteen elements per lane, and has a
 * quarter of the block's rows. It loads several chunks before it stores. */
template <flash_config_t C> constexpr int row_byte_chunks = C.d_head == 64 ? 4 : 8;
template <flash_config_t C> constexpr int rows_at_once = warp_threads / row_byte_chunks<C>;
template <flash_config_t C> constexpr int converter_rows = C.B_c / warpgroup_warps;
template <flash_config_t C> constexpr int lane_chunks = converter_rows<C> / rows_at_once<C>;
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
    const int rows = i * rows_at_once<C>;
    return (first ^ rows % 8 * SM90_CHUNK_BYTES) + rows * SM90_PANEL_BYTES;
}

/* Stores eight elements. */
static __device__ __forceinline__ void store_eight(uint32_t shared, uint32_t low, uint32_t high) {
    const e4m3_pairs_t a = fp16_from_e4m3(low), b = fp16_from_e4m3(high);
    shared_store(shared, uint4{a.low, a.high, b.low, b.high});
}

/* Converts a batch of the lane's chunks of a panel, the first of which are at `from` and `to`: each
 * becomes two chunks, whose places differ in the lowest bit. With `sanitise` NaNs become zeros;
 * returns whether there were some. */
template <flash_config_t C>
static __device__ __forceinline__ bool convert_batch(uint32_t from, uint32_t to, bool sanitise) {
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
#pragma unroll
    for (int i = 0; i < batch_chunks<C>; ++i) {
        const uint32_t chunk = lane_chunk<C>(to, i);
        store_eight(chunk, bytes[i].x, bytes[i].y);
        store_eight(chunk ^ SM90_CHUNK_BYTES, bytes[i].z, bytes[i].w);
    }
    return nans != 0;
}

/* Converts the warp's rows of a block that has landed in the stage at `shared`. */
template <flash_config_t C>
static __device__ __forceinline__ bool convert_block(uint32_t shared, bool sanitise) {
    constexpr uint32_t batch_rows = batch_chunks<C> * rows_at_once<C>;
    static_assert(batch_rows % 8 == 0, "a lane's places in every batch share one swizzle");
    const chunk_offsets_t offsets = lane_offsets<C>();
    uint32_t from = shared + offsets.from, to = shared + offsets.to;
    bool found = false;
#pragma unroll 1
    for (int panel = 0; panel < landing_panels<C, TENSOR_K>; ++panel) {
#pragma unroll 1
        for (uint32_t row = 0; row < converter_rows<C>; row += batch_rows)
            found |= convert_batch<C>(from + row * SM90_PANEL_BYTES, to + row * SM90_PANEL_BYTES,
                                      sanitise);
        from += kv_panel_bytes<C>;
        to += 2 * kv_panel_bytes<C>;
    }
    async_proxy_fence();
    return __any_sync(0xffffffffu, found);
}

/* A landing is a block of K or V that is to be converted here. */
typedef struct landing {
    uint32_t shared; /* where its stage begins */
    uint32_t landed;
    uint32_t full;
    uint32_t parity;
} landing_t;

template <flash_config_t C> static __device__ __forceinline__ landing_t next_k(ring_t &ring) {
    conversion_state_t &state = conversion_state<C>();
    const landing_t k = {k_tile<C>(ring.stage), shared_address(&state.k_landed[ring.stage]),
                         shared_address(&state.k_full[ring.stage]), ring.parity};
    step<k_stages<C>>(ring);
    return k;
}

template <flash_config_t C> static __device__ __forceinline__ landing_t next_v(ring_t &ring) {
    conversion_state_t &state = conversion_state<C>();
    const landing_t v = {v_tile<C>(ring.stage), shared_address(&state.v_landed[ring.stage]),
                         shared_address(&state.v_full[ring.stage]), ring.parity};
    step<v_stages<C>>(ring);
    return v;
}

/* Converts the tile's blocks in the order in which they are loaded: K of a block comes before V of
 * the block after it. Q comes after the first of K, which need not wait for the tile before.
 * sanitises: V of blocks that a mask cuts. */
template <flash_config_t C>
static __device__ __forceinline__ void convert_tile(const flash_params_t &p, const tile_of<C> &tile,
                                                    int assignment_slot, bool sanitises,
                                                    converter_t &converter) {
    const int32_t blocks = tile.block_end - tile.block_begin;
    const tile_scales_t scales = load_scales<C>(p, tile); /* they come while K does */
#pragma unroll 1
    for (int32_t i = 0; i < 2 * blocks; ++i) {
        const bool is_k = i == 0 || (i % 2 == 1 && i + 1 < 2 * blocks);
        const landing_t next = is_k ? next_k<C>(converter.k) : next_v<C>(converter.v);
        const bool sanitise = !is_k && sanitises && is_cut(tile, tile.block_end - (i + 1) / 2);
        mbarrier_wait(next.landed, next.parity);
        const bool found = convert_block<C>(next.shared, sanitise);
        if (found && elect_one())
            *(volatile int32_t *)&conversion_state<C>().v_sanitised[assignment_slot] = 1;
        __syncwarp();
        mbarrier_arrive_once_if(next.full, true);
        if (i == 0)
            convert_q<C>(p, scales, assignment_slot, converter.q);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void convert_pass(const sm90_params_t &params, bool sanitises,
                                                    converter_t &converter, ring_t &assignments) {
    while (true) {
        const int slot = assignments.stage;
        const assignment_of<C> assignment = take_assignment<C>(assignments);
        if (assignment.index < 0)
            break;
        if (has_blocks(assignment.tile))
            convert_tile<C>(params.problem, assignment.tile, slot, sanitises, converter);
    }
}

#endif
