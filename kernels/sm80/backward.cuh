/*
 * SM80 kernels of gradients compute on mma.sync, in two kernels: dQ of a tile of queries, or dK and
 * dV of a tile of keys. A configuration specialises both, and a generated wrapper gives each
 * configuration its name. Beside a kernel of dK and dV that can keep dS there is one of dQ of it:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void
 *     __launch_bounds__(sm80_backward_threads(&config), sm80_backward_blocks_per_sm(&config))
 *     NAME(const __grid_constant__ flash_backward_params_t params) {
 *         sm80_backward<config>(params);
 *     }
 *
 *     static constexpr flash_config_t of_ds = sm80_dq_of_ds_config(&config);
 *     extern "C" __global__ void
 *     __launch_bounds__(sm80_backward_threads(&of_ds), sm80_dq_of_ds_blocks_per_sm(&of_ds))
 *     NAME_dq_of_ds(const __grid_constant__ flash_backward_params_t params) {
 *         sm80_dq_of_ds<of_ds>(params);
 *     }
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_CUH
#define FLASH_KERNELS_SM80_BACKWARD_CUH

#include "sm80/backward/dq_of_ds.cuh"
#include "sm80/backward/mainloop.cuh"
#include "sm80/backward/store.cuh"

template <flash_config_t C>
static __device__ __forceinline__ void store_tile(const flash_backward_params_t &params,
                                                  const gradient_tile_t &tile, uint32_t shared,
                                                  const warp_gradients<C> &gradients) {
    const flash_params_t &p = params.forward;
    const flash_gradients_t &g = params.gradients;
    const float scale = scale_of_ds<C>(p);
    if constexpr (rows_are_keys<C>) {
        const int64_t token = tile.sequence.k_begin + tile.row_begin;
        store_gradient<C>(g.dk, shared, gradients.first, tile, token, p.d_head, scale);
        store_gradient<C>(g.dv, shared, gradients.second[0], tile, token, p.d_head_v,
                          has_dropout<C> ? p.dropout.scale : 1.0f);
    } else {
        const int64_t token = tile.sequence.q_begin + tile.row_begin;
        store_gradient<C>(g.dq, shared, gradients.first, tile, token, p.d_head, scale);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void sm80_backward(const flash_backward_params_t &params) {
    assert_legal<C>();
    extern __shared__ __align__(128) unsigned char shared[];
    const gradient_tile_t tile = find_tile<C>(params);
    warp_gradients<C> gradients = {};
    if (tile.rows <= 0)
        return;
    process_blocks<C>(params, tile, shared_address(shared), gradients);
    store_tile<C>(params, find_tile<C>(params), shared_address(shared), gradients);
}

#endif
