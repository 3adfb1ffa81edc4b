/*
 * Of a cache of e4m3 the last warpgroup of a block, the converter, makes fp16: each block of keys
 * in its stage (load/convert_block.cuh), while the consumers multiply by the other one, or by V. Of
 * latent tokens it makes bf16 (halves/convert_latent.cuh).
 *
 * Shared memory limits this: in SM90_MLA, for 36 KB of bytes it passes on 36 KB from TMA, 108 KB
 * here, and 208 KB to the products, of which those of QK^T take all that it has. Measured on an
 * H200, bytes that arrive in a ring of their own, and become fp16 in a single block: 1.14 to 1.2
 * times the time.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_CONVERT_CUH
#define FLASH_KERNELS_SM90_HALVES_CONVERT_CUH

#include "sm90/decode/walk.cuh"
#include "sm90/halves/convert_latent.cuh"
#include "sm90/halves/state.cuh"
#include "sm90/halves/tiles.cuh"

/* So many of the panels that arrive are converted; the last one of latent tokens arrives as it is.
 */
template <flash_config_t C>
constexpr int converted_panels = landing_panels<C, TENSOR_K> - (is_latent<C> ? 1 : 0);

/* Counts the parts that are complete when `converted` panels have been converted. */
template <flash_config_t C, kv_tensor T> __device__ constexpr int parts_of(int converted) {
    return converted == converted_panels<C> ? tensor_parts<C, T>
                                            : 2 * converted / part_panels<C, T>;
}

/* Converts the warp's rows of the block that has landed in the ring's stage, and hands the parts on
 * as they are complete. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void convert_parts(const ring_t &ring,
                                                     const chunk_offsets_t &offsets) {
    const uint32_t shared = stage_tile<C, T>(ring.stage);
    mbarrier_wait(shared_address(&halves_state<C>().of[T].landed[ring.stage]), ring.parity);
    const row_scales<C> scales = load_scales<C>(shared);
    latent_bytes<C> bytes = load_latent<C>(shared, 0, 0, offsets);
#pragma unroll
    for (int panel = 0; panel < converted_panels<C>; ++panel) {
        if constexpr (is_latent<C>)
            convert_latent_panel<C>(shared, panel, offsets, scales, bytes);
        else
            convert_panel<C>(shared, panel, offsets, false);
        if (parts_of<C, T>(panel) == parts_of<C, T>(panel + 1))
            continue;
        async_proxy_fence();
        __syncwarp();
        mbarrier_arrive_once_if(part_barrier<C, T>(ring, parts_of<C, T>(panel)), true);
    }
}

/* Converts all blocks of the walk: this is the warpgroup's whole work. NaNs stay: consumers
 * sanitise V. */
template <flash_config_t C>
static __device__ __forceinline__ void convert_walk(const key_walk_t &walk) {
    const chunk_offsets_t offsets = lane_offsets<C>();
    ring_t ring = {0, 0};
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        convert_parts<C, TENSOR_K>(ring, offsets);
        if constexpr (!v_in_k<C>)
            convert_parts<C, TENSOR_V>(ring, offsets);
        if (n >= whole_blocks(walk)) {
            meet_converter<C>();
            if constexpr (!v_in_k<C>)
                meet_converter<C>();
        }
        step<C.n_stages>(ring);
    }
}

/* Converts all blocks of the walk of one of several tiles. was_cut: of the tile before, until the
 * converter has waited for that. A loop shared with the function above changed the machine code of
 * kernels of one tile. */
template <flash_config_t C>
static __device__ __forceinline__ void convert_tile(const key_walk_t &walk, ring_t &ring,
                                                    const chunk_offsets_t &offsets, bool &was_cut) {
    static_assert(C.n_stages == 2, "the second block is the next one in the place of the last");
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        convert_parts<C, TENSOR_K>(ring, offsets);
        await_sanitised_if<C>(was_cut);
        if (n >= whole_blocks(walk))
            meet_converter<C>();
        step<C.n_stages>(ring);
    }
    was_cut |= whole_blocks(walk) < walk.blocks;
}

#endif
