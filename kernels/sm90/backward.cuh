/*
 * The SM90 kernels of gradients: dQ, or dK and dV. A configuration specialises them. As in the
 * forward kernels (forward.cuh) a producer warpgroup loads, and consumers multiply by wgmma:
 *
 *     warpgroup 0, the producer                        warpgroups 1 and 2: consumers
 *       TILE_LOAD_WARP   Q, K, V, dO -> shared memory    each multiplies 64 queries (dq.cuh), or
 *       ROW_LOAD_WARP    numbers of rows                 64 keys (dkv.cuh), or has one of two roles
 *                                                        for the same 64 keys (dkv_roles.cuh)
 *
 * Each tile of a gradient is computed by one block, or by consumers of one block, from the first
 * step to the last: nothing is added up by others, and the same inputs give the same bits.
 *
 * A generated wrapper gives each configuration its name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void __launch_bounds__(sm90_backward_threads(&config), 1)
 *     NAME(const __grid_constant__ sm90_backward_params_t params) {
 *         sm90_backward<config>(params);
 *     }
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_CUH
#define FLASH_KERNELS_SM90_BACKWARD_CUH

#include "sm90/backward/dkv.cuh"
#include "sm90/backward/dkv_roles.cuh"
#include "sm90/backward/dq.cuh"
#include "sm90/backward/dq_of_ds.cuh"

/* Runs the first warpgroup. */
template <flash_config_t C>
static __device__ __forceinline__ void
produce_gradient_tiles(const sm90_backward_params_t &params) {
    const int warp = threadIdx.x / warp_threads;
    if (warp == TILE_LOAD_WARP && elect_one()) {
        if constexpr (reads_ds<C>)
            load_ds_tiles<C>(params);
        else
            load_tiles<C>(params);
    } else if (!writes_dq<C> && warp == ROW_LOAD_WARP) {
        load_row_numbers<C>(params);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void
consume_gradient_tiles(const sm90_backward_params_t &params) {
    if constexpr (reads_ds<C>)
        consume_dq_of_ds<C>(params);
    else if constexpr (writes_dq<C>)
        consume_dq<C>(params);
    else if constexpr (has_roles<C>)
        consume_dkv_by_roles<C>(params);
    else
        consume_dkv<C>(params);
}

template <flash_config_t C>
static __device__ __forceinline__ void sm90_backward(const sm90_backward_params_t &params) {
    if constexpr (!reads_ds<C>)
        assert_legal_gradients<C>();
    if (threadIdx.x == 0)
        initialize_gradient_state<C>();
    __syncthreads();
    if (threadIdx.x >= SM90_WARPGROUP_THREADS) {
        acquire_registers<gradient_consumer_registers<C>>();
        consume_gradient_tiles<C>(params);
    } else {
        release_registers<gradient_producer_registers<C>>();
        produce_gradient_tiles<C>(params);
    }
}

#endif
