/*
 * The converter is a warpgroup of its own: it makes fp16 of the blocks of K and V of e4m3, and
 * hands them on to the consumers, which multiply them as any other (convert_block.cuh).
 *
 * Under a mask it zeroes NaNs of V in the blocks that are cut, as load/sanitise_v.cuh says.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_CONVERT_KV_CUH
#define FLASH_KERNELS_SM90_LOAD_CONVERT_KV_CUH

#include "sm90/load/convert_block.cuh"
#include "sm90/load/convert_q.cuh"
#include "sm90/schedule/schedule.cuh"

typedef struct converter {
    ring_t q;
    ring_t k;
    ring_t v;
} converter_t;

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
    const tile_scales_t scales = load_scales<C>(p, tile); /* they come while K does */
    bool is_first = true, is_k = true;
    block_visit<C> block = last_shown<C>(p, tile); /* whose V comes next */
#pragma unroll 1
    while (block_index(block) >= tile.block_begin) {
        const landing_t next = is_k ? next_k<C>(converter.k) : next_v<C>(converter.v);
        const bool sanitise = !is_k && sanitises && is_cut(tile, block_index(block));
        mbarrier_wait(next.landed, next.parity);
        const bool found = convert_block<C>(next.shared, sanitise);
        if (found && elect_one())
            *(volatile int32_t *)&conversion_state<C>().v_sanitised[assignment_slot] = 1;
        __syncwarp();
        mbarrier_arrive_once_if(next.full, true);
        if (is_first)
            convert_q<C>(p, scales, assignment_slot, converter.q);
        if (!is_k)
            block = next_shown<C>(p, tile, block);
        is_k = (is_first || !is_k) && block_index(block) > tile.block_begin;
        is_first = false;
    }
}

/* Returns what ended the pass. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t convert_pass(const sm90_params_t &params, bool sanitises,
                                                       converter_t &converter,
                                                       ring_t &assignments) {
    while (true) {
        const int slot = assignments.stage;
        const assignment_of<C> assignment = take_assignment<C>(assignments);
        if (assignment.index < 0)
            return assignment.index;
        if (has_blocks(assignment.tile))
            convert_tile<C>(params.problem, assignment.tile, slot, sanitises, converter);
    }
}

#endif
