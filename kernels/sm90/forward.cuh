/*
 * The SM90 kernel computes attention by warps with different roles (FlashAttention-3, Shah et al.,
 * arXiv 2407.08608). A configuration specialises it.
 *
 *     warpgroup 0, the producer                        warpgroups 1, 2, (3): consumers
 *       KV_LOAD_WARP         K, V -> shared memory       each multiplies 64 rows of Q by wgmma,
 *       SCHEDULER_WARP       announces tiles             in registers:
 *       Q_LOAD_O_STORE_WARP  Q -> shared memory,           S = Q K^T, P = softmax(S), O += P V
 *                            O -> global memory
 *       SANITISE_WARP        V without hidden NaN
 *
 * Where K and V lie in pages, the first of these warps loads K, and the last one V.
 * K and V of e4m3 pass through one warpgroup more, the converter, which makes fp16 of them.
 *
 * block_state.cuh says how they hand on data. A generated wrapper gives each configuration its
 * name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void __launch_bounds__(sm90_block_threads(&config), 1)
 *     NAME(const __grid_constant__ sm90_params_t params) {
 *         sm90_forward<config>(params);
 *     }
 *
 * With fixed_reference, tiles whose reference has failed are recorded, and done again after all
 * others with a running maximum, over what the first pass has stored.
 */
#ifndef FLASH_KERNELS_SM90_FORWARD_CUH
#define FLASH_KERNELS_SM90_FORWARD_CUH

#include "common/ptx/dependent_launch.cuh"
#include "sm90/consumer_tiles.cuh"
#include "sm90/load/convert_kv.cuh"
#include "sm90/load/kv.cuh"
#include "sm90/load/paged_kv.cuh"
#include "sm90/load/q_load_o_store.cuh"

template <flash_config_t C>
static __device__ __forceinline__ void consume(const sm90_params_t &params) {
    consumer_state<C> consumer;
    consumer.q_slot = consumer.k = consumer.v = consumer.assignments = ring_t{0, 0};
    consumer.o_parity = 0;
    consumer.number = consumer_number();
    start_turns<C>(consumer);
    consume_pass<C, C.fixed_reference>(params, consumer);
    if constexpr (C.fixed_reference)
        if (await_second_pass<C>())
            consume_pass<C, false>(params, consumer);
}

template <flash_config_t C, typename LOADER>
static __device__ __forceinline__ void load_paged_k(const sm90_params_t &params) {
    ring_t ring = {0, 0};
    ring_t assignments = {0, 0};
    run_passes<C>([&](bool) { return load_paged_k_pass<C, LOADER>(params, ring, assignments); });
}

/* The second pass has code of its own: in the first one there are no registers for what sanitises.
 */
template <flash_config_t C, typename LOADER>
static __device__ __forceinline__ void load_paged_v(const sm90_params_t &params) {
    v_loader_t loader = {{0, 0}, 0, 0};
    ring_t assignments = {0, 0};
    load_paged_v_pass<C, !C.fixed_reference, LOADER>(params, loader, assignments);
    if constexpr (C.fixed_reference)
        if (await_second_pass<C>())
            load_paged_v_pass<C, true, LOADER>(params, loader, assignments);
}

/* Runs the warps that load K and V from pages. */
template <flash_config_t C, typename LOADER>
static __device__ __forceinline__ void load_paged(const sm90_params_t &params, bool is_k) {
    if (is_k)
        load_paged_k<C, LOADER>(params);
    else
        load_paged_v<C, LOADER>(params);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_kv(const sm90_params_t &params) {
    kv_loader_t loader = {{0, 0}, {0, 0}, 0, false};
    ring_t assignments = {0, 0};
    if constexpr (multiplies_e4m3<C>)
        wait_for_primary(); /* it transposes V */
    run_passes<C>([&](bool second) {
        return load_kv_pass<C>(params, sanitises_in<C>(second), loader, assignments);
    });
}

template <flash_config_t C>
static __device__ __forceinline__ void schedule(const sm90_params_t &params) {
    announcer_t to = {{0, 0}, has_varlen<C>};
    run_passes<C>([&](bool second) { return schedule_pass<C>(params, second, to); });
}

template <flash_config_t C>
static __device__ __forceinline__ void load_q_store_o(const sm90_params_t &params) {
    q_o_mover<C> mover = {{}, {0, 0}, 0};
    ring_t assignments = {0, 0};
    run_passes<C>([&](bool) { return load_q_store_o_pass<C>(params, mover, assignments); });
}

template <flash_config_t C>
static __device__ __forceinline__ void sanitise_v(const sm90_params_t &params) {
    sanitiser_t sanitiser = {{0, 0}, 0};
    ring_t assignments = {0, 0};
    run_passes<C>([&](bool second) {
        if constexpr (has_mask<C> && !converts<C>)
            return sanitise_pass<C>(params.problem, sanitises_in<C>(second), sanitiser,
                                    assignments);
        return end_of_pass(second);
    });
}

/* Runs the last warpgroup, where K and V are converted. */
template <flash_config_t C>
static __device__ __forceinline__ void convert(const sm90_params_t &params) {
    converter_t converter = {{0, 0}, {0, 0}, {0, 0}};
    ring_t assignments = {0, 0};
    run_passes<C>([&](bool second) {
        return convert_pass<C>(params, sanitises_in<C>(second), converter, assignments);
    });
}

/* Runs the first warpgroup, one role per warp. */
template <flash_config_t C>
static __device__ __forceinline__ void produce(const sm90_params_t &params) {
    const int warp = threadIdx.x / warp_threads;
    if (warp != SCHEDULER_WARP || has_varlen<C>)
        __syncthreads();
    if (warp == SCHEDULER_WARP)
        schedule<C>(params);
    else if (warp == Q_LOAD_O_STORE_WARP)
        load_q_store_o<C>(params);
    else if constexpr (!has_pages<C>)
        warp == KV_LOAD_WARP ? load_kv<C>(params) : sanitise_v<C>(params);
    else if (params.paging.box_keys > 0)
        load_paged<C, box_loader_t>(params, warp == KV_LOAD_WARP);
    else
        load_paged<C, row_loader_t>(params, warp == KV_LOAD_WARP);
}

/* Prefetches the tensor maps while the block begins, in one thread. */
static __device__ __forceinline__ void prefetch_maps(const sm90_params_t &params) {
    tma_prefetch_map(&params.q);
    tma_prefetch_map(&params.k);
    tma_prefetch_map(&params.v);
    tma_prefetch_map(&params.o);
}

template <flash_config_t C>
static __device__ __forceinline__ void start_consumer(const sm90_params_t &params) {
    __syncthreads();
    acquire_registers<consumer_registers<C>>();
    consume<C>(params);
}

template <flash_config_t C>
static __device__ __forceinline__ void start_producer(const sm90_params_t &params) {
    release_registers<producer_registers<C>>();
    produce<C>(params);
}

/* Runs the roles of a block that converts. Consumers branch off first, by one comparison: otherwise
 * ptxas computes addresses for the others before the branch, and leaves those of the consumers in
 * vector registers too. */
template <flash_config_t C>
static __device__ __forceinline__ void take_role_beside_converter(const sm90_params_t &params) {
    if (threadIdx.x - SM90_WARPGROUP_THREADS < consumer_threads<C>) {
        start_consumer<C>(params);
    } else if (threadIdx.x < SM90_WARPGROUP_THREADS) {
        start_producer<C>(params);
    } else {
        release_registers<converter_registers>();
        __syncthreads();
        convert<C>(params);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void sm90_forward(const sm90_params_t &params) {
    assert_legal<C>();
    if (threadIdx.x == Q_LOAD_O_STORE_WARP * warp_threads)
        prefetch_maps(params);
    initialize_block_state<C>(params.problem);
    if constexpr (multiplies_e4m3<C>)
        write_ones<C>();
    if constexpr (converts<C>) {
        take_role_beside_converter<C>(params);
    } else if (threadIdx.x >= SM90_WARPGROUP_THREADS) {
        start_consumer<C>(params);
    } else {
        start_producer<C>(params);
    }
}

#endif
