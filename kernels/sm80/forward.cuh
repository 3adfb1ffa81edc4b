/*
 * The SM80 kernel is FlashAttention-2's algorithm (arXiv 2307.08691) on mma.sync. A configuration
 * specialises it, and a generated wrapper gives each configuration its name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void
 *     __launch_bounds__(sm80_block_threads(&config), sm80_blocks_per_sm(&config))
 *     NAME(const __grid_constant__ flash_params_t params) {
 *         sm80_forward<config>(params);
 *     }
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_CUH
#define FLASH_KERNELS_SM80_FORWARD_CUH

#include "sm80/forward/epilogue.cuh"
#include "sm80/forward/mainloop.cuh"

/* Returns false if the tile lies past the end of its sequence. */
template <flash_config_t C>
static __device__ __forceinline__ bool compute_tile(const flash_params_t &params, uint32_t q_shared,
                                                    warp_state<C> &state) {
    const query_tile_t tile = find_tile<C>(params);
    if (tile.rows <= 0)
        return false;
    if (tile.block_begin >= tile.block_end)
        return true;
    if constexpr (has_bias<C>)
        process_shown_blocks<C>(params, tile, make_score_unit<C>(params), q_shared, state);
    else
        process_blocks<C>(params, tile, make_score_unit<C>(params), q_shared, state);
    return true;
}

template <flash_config_t C>
static __device__ __forceinline__ void sm80_forward(const flash_params_t &params) {
    assert_legal<C>();
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t q_shared = shared_address(shared);
    warp_state<C> state = {{}, empty_softmax<C>()};
    if (compute_tile<C>(params, q_shared, state))
        store_tile<C>(params, find_tile<C>(params), state, q_shared);
}

#endif
