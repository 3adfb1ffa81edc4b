/*
 * The sanitise warp replaces infinities and NaNs in V by zeros where a mask hides the key from some
 * rows only. P is 0 there, but 0 * NaN is NaN, and wgmma cannot tell. So this warp looks at the few
 * blocks of V that a mask cuts before the consumers may multiply by them; the rare tile that had
 * such an element adds it, at its end, to the rows that do see it (store/non_finite.cuh).
 *
 * With a fixed reference V goes to the consumers as it comes, and only the second pass sanitises.
 * Every element of O that a hidden value has touched is NaN by then: 0 times infinity or NaN is
 * NaN, and NaN it stays through every sum, factor (0 too) and rounding on its way to the 16 bits of
 * O, at which failed() looks. So the tile is done again.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_SANITISE_V_CUH
#define FLASH_KERNELS_SM90_LOAD_SANITISE_V_CUH

#include "common/non_finite.cuh"
#include "sm90/block_state.cuh"
#include "sm90/schedule/schedule.cuh"
#include "sm90/shown_blocks.cuh"

typedef struct sanitiser {
    ring_t v;
    uint32_t landed_parities; /* a bit per stage */
} sanitiser_t;

/* Zeroes the infinities and NaNs among the thread's chunks of a block. Returns whether there were
 * any. */
template <flash_config_t C> static __device__ __forceinline__ bool zero_non_finite(uint32_t block) {
    const uint32_t first = block + threadIdx.x % warp_threads * SM90_CHUNK_BYTES;
    const uint32_t end = block + value_bytes<C>;
    if constexpr (multiplies_e4m3<C>) {
        uint32_t nans = 0;
#pragma unroll 8
        for (uint32_t chunk = first; chunk < end; chunk += warp_threads * SM90_CHUNK_BYTES)
            nans = add_zero_times_chunk<operand_dtype<C>>(nans, shared_load(chunk));
        if (nans == 0)
            return false;
#pragma unroll 1
        for (uint32_t chunk = first; chunk < end; chunk += warp_threads * SM90_CHUNK_BYTES)
            shared_store(chunk, finite_chunk<operand_dtype<C>>(shared_load(chunk)));
        return true;
    } else {
        uint32_t sum[4] = {0, 0, 0, 0};
#pragma unroll 8
        for (uint32_t chunk = first; chunk < end; chunk += warp_threads * SM90_CHUNK_BYTES) {
            const uint4 v = shared_load(chunk);
            sum[0] = multiply_add_pair<operand_dtype<C>>(v.x, 0, sum[0]);
            sum[1] = multiply_add_pair<operand_dtype<C>>(v.y, 0, sum[1]);
            sum[2] = multiply_add_pair<operand_dtype<C>>(v.z, 0, sum[2]);
            sum[3] = multiply_add_pair<operand_dtype<C>>(v.w, 0, sum[3]);
        }
        if (is_pair_of_zeros(sum[0] | sum[1] | sum[2] | sum[3]))
            return false;
#pragma unroll 1
        for (uint32_t chunk = first; chunk < end; chunk += warp_threads * SM90_CHUNK_BYTES)
            shared_store(chunk, finite_chunk<operand_dtype<C>>(shared_load(chunk)));
        return true;
    }
}

/* Sanitises the block in a stage and hands it on to the consumers. landed_parities: those that the
 * next waits for v_landed have, a bit per stage. slot: that of the tile's assignment. */
template <flash_config_t C>
static __device__ __forceinline__ void sanitise_stage(int stage, uint32_t &landed_parities,
                                                      int slot) {
    block_state_t &state = block_state<C>();
    wait_full(state.v_landed[stage], landed_parities >> stage & 1);
    landed_parities ^= 1u << stage;
    const bool found = zero_non_finite<C>(v_tile<C>(stage));
    async_proxy_fence();
    if (__any_sync(0xffffffffu, found) && elect_one())
        *(volatile int32_t *)&state.v_sanitised[slot] = 1;
    __syncwarp();
    release(state.v_full[stage]);
}

/* Goes over the blocks of a tile, and sanitises those that a mask cuts, if the pass sanitises. */
template <flash_config_t C>
static __device__ __forceinline__ void sanitise_tile(const flash_params_t &p,
                                                     const tile_of<C> &tile, bool sanitises,
                                                     int slot, sanitiser_t &sanitiser) {
    for (block_visit<C> block = last_shown<C>(p, tile); block_index(block) >= tile.block_begin;
         block = next_shown<C>(p, tile, block)) {
        if (sanitises && is_cut(tile, block_index(block)))
            sanitise_stage<C>(sanitiser.v.stage, sanitiser.landed_parities, slot);
        step<v_stages<C>>(sanitiser.v);
    }
}

/* Returns what ended the pass. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t sanitise_pass(const flash_params_t &p, bool sanitises,
                                                        sanitiser_t &sanitiser,
                                                        ring_t &assignments) {
    while (true) {
        const int slot = assignments.stage;
        const assignment_of<C> assignment = take_assignment<C>(assignments);
        if (assignment.index < 0)
            return assignment.index;
        if (has_blocks(assignment.tile))
            sanitise_tile<C>(p, assignment.tile, sanitises, slot, sanitiser);
    }
}

/* Says whether V of the tile had infinities or NaNs to sanitise. This is known when all of its
 * blocks have arrived, until the assignment in this slot is released. */
template <flash_config_t C> static __device__ __forceinline__ bool v_was_sanitised(int slot) {
    return *(volatile int32_t *)&block_state<C>().v_sanitised[slot] != 0;
}

#endif
