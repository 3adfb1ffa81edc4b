/*
 * The warp that loads the blocks of K and V of each tile, from the last to the first, as soon as
 * the consumers have left a place for them.
 */
#ifndef FLASH_KERNELS_SM90_PRODUCER_CUH
#define FLASH_KERNELS_SM90_PRODUCER_CUH

#include "sm90/block_state.cuh"
#include "sm90/box.cuh"

typedef struct producer {
    ring_t k;
    ring_t v;
    uint32_t o_parity;
} producer_t;

/* A block of K or V into its ring's next place. */
template <flash_config_t C, int STAGES>
static __device__ __forceinline__ void load_kv(const sm90_tensor_map_t *map, tma_box_t box,
                                               uint32_t shared, const uint64_t &full,
                                               const uint64_t &empty, ring_t &ring) {
    const uint32_t barrier = shared_address(&full);
    mbarrier_wait(shared_address(&empty), ring.parity ^ 1);
    mbarrier_arrive_expect(barrier, kv_bytes<C>);
#pragma unroll
    for (int i = 0; i < panels<C>; ++i, box.column += SM90_PANEL_ELEMENTS)
        tma_load<has_varlen<C>>(shared + i * kv_panel_bytes<C>, map, box, barrier, l2_evict_last);
    step<STAGES>(ring);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_k(const sm90_params_t &params, const tile_of<C> &t,
                                              int32_t block, producer_t &producer) {
    block_state_t &state = block_state<C>();
    const int stage = producer.k.stage;
    load_kv<C, k_stages<C>>(
        &params.k, key_box<C>(params.problem, t, block * C.B_c, params.entry_tokens.k),
        k_tile<C>(stage), state.k_full[stage], state.k_empty[stage], producer.k);
}

template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void load_v(const sm90_params_t &params, const tile_of<C> &t,
                                              int32_t block, producer_t &producer) {
    block_state_t &state = block_state<C>();
    const int stage = producer.v.stage;
    const bool looked_over = is_guarded<C, FIXED> && is_cut(t, block);
    load_kv<C, v_stages<C>>(
        &params.v, key_box<C>(params.problem, t, block * C.B_c, params.entry_tokens.v),
        v_tile<C>(stage), looked_over ? state.v_landed[stage] : state.v_full[stage],
        state.v_empty[stage], producer.v);
}

/* The last tile's O has left the blocks of V. */
template <flash_config_t C>
static __device__ __forceinline__ void await_output(producer_t &producer) {
    if constexpr (place_of_o<C> == OUTPUT_IN_V) {
        mbarrier_wait(shared_address(&block_state<C>().o_left), producer.o_parity);
        producer.o_parity ^= 1;
    }
}

/* In the order in which the consumers need them. The last tile's O leaves meanwhile: its places of
 * V are those after the first few, and free before the tile's last block, so that they are for O of
 * the next one. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void load_tile(const sm90_params_t &params, const tile_of<C> &t,
                                                 producer_t &producer) {
    if (t.block_begin >= t.block_end)
        return;
    const int32_t first_in_o = max(t.block_end - 1 - v_places_beside_o<C>, t.block_begin);
    load_k<C>(params, t, t.block_end - 1, producer);
    for (int32_t block = t.block_end - 1; block > t.block_begin; --block) {
        load_k<C>(params, t, block - 1, producer);
        if (block == first_in_o)
            await_output<C>(producer);
        load_v<C, FIXED>(params, t, block, producer);
    }
    if (t.block_begin == first_in_o)
        await_output<C>(producer);
    load_v<C, FIXED>(params, t, t.block_begin, producer);
}

#endif
