/*
 * The warp that loads: Q of each tile, and its blocks of K and V from the last to the first, as
 * soon as the consumers have left a place for them.
 */
#ifndef FLASH_KERNELS_SM90_PRODUCER_CUH
#define FLASH_KERNELS_SM90_PRODUCER_CUH

#include "sm90/block_state.cuh"
#include "sm90/ptx/tma.cuh"

typedef struct producer {
    ring_t k;
    ring_t v;
    uint32_t q_parity;
} producer_t;

template <flash_config_t C>
static __device__ __forceinline__ void load_kv(uint32_t shared, const sm90_tensor_map_t *map,
                                               tma_box_t box, const uint64_t &full) {
    const uint32_t barrier = shared_address(&full);
    mbarrier_arrive_expect(barrier, kv_bytes<C>);
#pragma unroll
    for (int i = 0; i < panels<C>; ++i, box.column += SM90_PANEL_ELEMENTS)
        tma_load(shared + i * kv_panel_bytes<C>, map, box, barrier, l2_evict_last);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_q(const sm90_params_t &params, const query_tile_t &t,
                                              producer_t &producer) {
    block_state_t &state = block_state<C>();
    const uint32_t barrier = shared_address(&state.q_full);
    tma_box_t box = {0, t.row_begin, t.head, t.batch_index};
    mbarrier_wait(shared_address(&state.q_empty), producer.q_parity ^ 1);
    producer.q_parity ^= 1;
    mbarrier_arrive_expect(barrier, q_bytes<C>);
#pragma unroll
    for (int i = 0; i < panels<C>; ++i, box.column += SM90_PANEL_ELEMENTS)
        tma_load(q_tile() + i * q_panel_bytes<C>, &params.q, box, barrier, l2_evict_first);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_k(const sm90_params_t &params, const query_tile_t &t,
                                              int32_t block, producer_t &producer) {
    block_state_t &state = block_state<C>();
    const int stage = producer.k.stage;
    const int32_t head_kv = t.head / params.problem.group;
    mbarrier_wait(shared_address(&state.k_empty[stage]), producer.k.parity ^ 1);
    load_kv<C>(k_tile<C>(stage), &params.k, {0, block * C.B_c, head_kv, t.batch_index},
               state.k_full[stage]);
    step<C.n_stages>(producer.k);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_v(const sm90_params_t &params, const query_tile_t &t,
                                              int32_t block, producer_t &producer) {
    block_state_t &state = block_state<C>();
    const int stage = producer.v.stage;
    const int32_t head_kv = t.head / params.problem.group;
    const bool looked_over = has_mask<C> && is_cut(t, block);
    mbarrier_wait(shared_address(&state.v_empty[stage]), producer.v.parity ^ 1);
    load_kv<C>(v_tile<C>(stage), &params.v, {0, block * C.B_c, head_kv, t.batch_index},
               looked_over ? state.v_landed[stage] : state.v_full[stage]);
    step<C.n_stages>(producer.v);
}

/* In the order in which the consumers need them. */
template <flash_config_t C>
static __device__ __forceinline__ void load_tile(const sm90_params_t &params, const query_tile_t &t,
                                                 producer_t &producer) {
    if (t.block_begin >= t.block_end)
        return;
    load_k<C>(params, t, t.block_end - 1, producer);
    load_q<C>(params, t, producer);
    for (int32_t block = t.block_end - 1; block > t.block_begin; --block) {
        load_k<C>(params, t, block - 1, producer);
        load_v<C>(params, t, block, producer);
    }
    load_v<C>(params, t, t.block_begin, producer);
}

#endif
