/*
 * The SM90_DECODE kernel computes attention of more rows (queries x query heads of a group) than
 * the SM80_DECODE kernel takes, and of too few for the SM90 kernel to fill the device. A block has
 * one piece of a sequence's keys for a tile of packed rows of one K/V head; pieces are merged by
 * flash_sm90_decode_combine.
 *
 *     warpgroup 0, the producer       warpgroups 1, (2): consumers
 *       KV_LOAD_WARP   K by TMA         each copies 64 rows of Q, and multiplies them by wgmma:
 *       V_LOAD_WARP    V by TMA         S = Q K^T, P = softmax(S), O += P V
 *
 * With K and V of e4m3, one warpgroup more is the converter (decode/convert.cuh); or, where they
 * are multiplied as such, two warps of the producer transpose V (decode/transpose.cuh).
 *
 * Tiles and barriers of K and V are those of sm90/block_state.cuh. A generated wrapper gives each
 * configuration its name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void __launch_bounds__(sm90_block_threads(&config), 1)
 *     NAME(const __grid_constant__ sm90_decode_params_t params) {
 *         sm90_decode<config>(params);
 *     }
 */
#ifndef FLASH_KERNELS_SM90_DECODE_CUH
#define FLASH_KERNELS_SM90_DECODE_CUH

#include "common/ptx/dependent_launch.cuh"
#include "sm90/decode/convert.cuh"
#include "sm90/decode/load.cuh"
#include "sm90/decode/result.cuh"
#include "sm90/decode/scaled_rows.cuh"

/* Initialises the barriers of K and V, in one thread. */
template <flash_config_t C> static __device__ __forceinline__ void initialize_rings() {
    block_state_t &state = block_state<C>();
    constexpr int consumer_warps = consumers<C> * warpgroup_warps;
    for (int i = 0; i < k_stages<C>; ++i) {
        mbarrier_init(shared_address(&k_arrival<C>(i)), 1);
        if constexpr (converts<C>)
            mbarrier_init(shared_address(&state.k_full[i]), changing_warps<C>);
        mbarrier_init(shared_address(&state.k_empty[i]), consumer_warps);
    }
    for (int i = 0; i < v_stages<C>; ++i) {
        mbarrier_init(shared_address(&v_arrival<C>(i, transposes<C>)), 1);
        if constexpr (changing_warps < C >> 0)
            mbarrier_init(shared_address(&state.v_full[i]), changing_warps<C>);
        if constexpr (transposes<C>)
            mbarrier_init(shared_address(&v_landing_empty<C>(i)), changing_warps<C>);
        mbarrier_init(shared_address(&state.v_empty[i]), consumer_warps);
    }
    mbarrier_init_fence();
}

template <flash_config_t C>
static __device__ __forceinline__ void
produce(const sm90_decode_params_t &params, const decode_block_t &block, const key_walk_t &walk) {
    const int warp = threadIdx.x / warp_threads;
    if (warp == KV_LOAD_WARP)
        load_walk<C, TENSOR_K>(params, block, walk, k_stream<C>(params));
    else if (warp == V_LOAD_WARP)
        load_walk<C, TENSOR_V>(params, block, walk, v_stream<C>(params));
    else if constexpr (transposes<C>)
        transpose_walk<C>(walk, warp - FIRST_TRANSPOSE_WARP);
}

template <flash_config_t C>
static __device__ __forceinline__ void
consume(const sm90_decode_params_t &of_call, const decode_block_t &block, const key_walk_t &walk) {
    const decode_params_t &params = of_call.cut;
    const score_unit_t unit = score_unit_of<has_softcap<C>>(params.attention);
    row_state<C> rows;
    start_rows<C>(rows);
    rows.paging = &of_call.paging;
    copy_scaled_queries<C>(params, block);
    if constexpr (!parks_block<C>)
        rows.sink = load_row_sink<C>(params, block);
    const tile_bias<C> bias = find_tile_bias<C>(params, block, unit);
    park<C>(rows.number, block, walk);
    named_barrier_sync(CONSUMER_BARRIER + rows.number, SM90_WARPGROUP_THREADS);
    if constexpr (q_in_registers<C>)
        load_queries<C>(rows.q);
    const score_units<C> units = units_of_rows<C>(params, block, unit);
    compute_walk<C>(rows, params, block, walk, bias, units);
    const decode_block_t again = unpark<C>(rows.number, block, walk).block;
    if constexpr (parks_block<C>)
        rows.sink = load_row_sink<C>(params, again);
    finish_scales<C>(rows, units);
    finish_rows<C>(params, again, rows, unit_of_maxima<C>(bias, unit));
}

/* One consumer without a converter has enough registers as it is. */
template <flash_config_t C>
constexpr bool moves_registers = block_threads<C> > 2 * SM90_WARPGROUP_THREADS;

template <flash_config_t C>
static __device__ __forceinline__ void sm90_decode(const sm90_decode_params_t &params) {
    assert_decodes<C>();
    static_assert(sizeof(cut_scratch<C>) <= q_bytes<C>, "the scratch lies over Q");
    decode_block_t block;
    launch_dependents();
    if (threadIdx.x == V_LOAD_WARP * warp_threads) {
        tma_prefetch_map(&params.k);
        tma_prefetch_map(&params.v);
    }
    if (!find_block<C>(params.cut, *(cut_scratch<C> *)shared_memory, block))
        return;
    if constexpr (multiplies_e4m3<C>)
        write_ones<C>();
    if (threadIdx.x == 0) {
        initialize_rings<C>();
        record_split(params.cut, block);
    }
    __syncthreads();
    const key_walk_t walk = find_walk<C>(params.cut, block);
    if (converts<C> && threadIdx.x >= first_converter<C>) {
        release_registers<converter_registers>();
        if constexpr (converts<C>)
            convert_walk<C>(walk);
    } else if (threadIdx.x >= SM90_WARPGROUP_THREADS) {
        if constexpr (moves_registers<C>)
            acquire_registers<consumer_registers<C>>();
        consume<C>(params, block, walk);
    } else {
        if constexpr (moves_registers<C>)
            release_registers<producer_registers<C>>();
        produce<C>(params, block, walk);
    }
}

#endif
