/*
 * The KV-load warp loads the blocks of K and V of each tile, from the last to the first, as soon as
 * the consumers have left a stage for them.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_KV_CUH
#define FLASH_KERNELS_SM90_LOAD_KV_CUH

#include "sm90/block_state.cuh"
#include "sm90/load/box.cuh"
#include "sm90/schedule/schedule.cuh"
#include "sm90/shown_blocks.cuh"

typedef struct kv_loader {
    ring_t k;
    ring_t v;
    uint32_t o_parity; /* of o_left */
    bool o_is_due;     /* an O is still to be awaited: see load_tile() */
} kv_loader_t;

/* Returns the barrier that counts a block's bytes. */
template <flash_config_t C> static __device__ __forceinline__ const uint64_t &k_arrival(int stage) {
    if constexpr (converts<C>)
        return conversion_state<C>().k_landed[stage];
    else
        return block_state<C>().k_full[stage];
}

template <flash_config_t C>
static __device__ __forceinline__ const uint64_t &v_arrival(int stage, bool sanitised) {
    block_state_t &state = block_state<C>();
    return converts<C> || sanitised ? state.v_landed[stage] : state.v_full[stage];
}

/* Loads a block of K or V into its ring's next stage, which begins at `shared`. hint: to L2. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void
load_stage(const sm90_tensor_map_t *map, tma_box_t box, uint32_t shared, const uint64_t &full,
           const uint64_t &empty, ring_t &ring, uint64_t hint = l2_evict_last) {
    const uint32_t barrier = shared_address(&full);
    mbarrier_wait(shared_address(&empty), ring.parity ^ 1);
    mbarrier_arrive_expect(barrier, landing_bytes<C, T>);
#pragma unroll
    for (int i = 0; i < landing_panels<C, T>; ++i, box.column += landing_columns<C>)
        tma_load<has_varlen<C>>(shared + landing_offset<C, T> + i * kv_panel_bytes<C>, map, box,
                                barrier, hint);
    step<kv_stages<C, T>>(ring);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_k(const sm90_params_t &params, const tile_of<C> &tile,
                                              const block_visit<C> &block, kv_loader_t &loader) {
    block_state_t &state = block_state<C>();
    const int stage = loader.k.stage;
    const int32_t key = block_index(block) * C.B_c;
    announce_visit<C>(loader.k, block);
    load_stage<C, TENSOR_K>(&params.k, key_box<C>(params.problem, tile, key, params.entry_tokens.k),
                            k_tile<C>(stage), k_arrival<C>(stage), state.k_empty[stage], loader.k);
}

/* Loads a block of V that lies transposed, which is a panel of it (transpose_v_kernel.h): its keys
 * are columns of the map, and V's columns are rows. */
template <flash_config_t C>
static __device__ __forceinline__ void load_transposed(const sm90_params_t &params,
                                                       const tile_of<C> &tile, int32_t block,
                                                       const uint64_t &full, ring_t &ring) {
    const uint32_t barrier = shared_address(&full);
    static_assert(C.B_c == SM90_PANEL_BYTES, "a block is a panel");
    const int32_t head_kv = tile.head / params.problem.group;
    const tma_box_t box = {0, 0, block, tile.batch_index * params.problem.n_heads_kv + head_kv};
    mbarrier_wait(shared_address(&block_state<C>().v_empty[ring.stage]), ring.parity ^ 1);
    mbarrier_arrive_expect(barrier, d_head_v<C> * C.B_c);
    tma_load<false>(v_tile<C>(ring.stage), &params.v, box, barrier, l2_evict_last);
    step<v_stages<C>>(ring);
}

template <flash_config_t C>
static __device__ __forceinline__ void load_v(const sm90_params_t &params, const tile_of<C> &tile,
                                              int32_t block, bool sanitises, kv_loader_t &loader) {
    block_state_t &state = block_state<C>();
    const int stage = loader.v.stage;
    const bool sanitised = sanitises && is_cut(tile, block);
    if constexpr (multiplies_e4m3<C>)
        load_transposed<C>(params, tile, block, v_arrival<C>(stage, sanitised), loader.v);
    else
        load_stage<C, TENSOR_V>(
            &params.v, key_box<C>(params.problem, tile, block * C.B_c, params.entry_tokens.v),
            v_tile<C>(stage), v_arrival<C>(stage, sanitised), state.v_empty[stage], loader.v);
}

/* Returns the first block whose V may go to stages in which the O of the tile before is staged, or
 * block_begin - 1 if there is none. O leaves meanwhile: its stages come after v_stages_beside_o
 * others. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t first_block_in_o(const flash_params_t &p,
                                                           const tile_of<C> &tile) {
    block_visit<C> block = last_shown<C>(p, tile);
#pragma unroll 1
    for (int i = 0; i < v_stages_beside_o<C> && block_index(block) >= tile.block_begin; ++i)
        block = next_shown<C>(p, tile, block);
    return block_index(block);
}

/* Waits until the O of the tile before has left the stages of V. parity: of o_left. */
template <flash_config_t C> static __device__ __forceinline__ void await_output(uint32_t &parity) {
    if constexpr (staging_of_o<C> == STAGED_IN_V) {
        mbarrier_wait(shared_address(&block_state<C>().o_left), parity);
        parity ^= 1;
    }
}

/* Loads K and V in the order in which the consumers need them. Where no V of the tile goes to the
 * stages of the O before it, that O is awaited in the next tile, after K. */
template <flash_config_t C>
static __device__ __forceinline__ void load_tile(const sm90_params_t &params,
                                                 const tile_of<C> &tile, bool sanitises,
                                                 kv_loader_t &loader) {
    if (tile.block_begin >= tile.block_end)
        return;
    const int32_t first_in_o = first_block_in_o<C>(params.problem, tile);
    block_visit<C> next, block = last_shown<C>(params.problem, tile);
    load_k<C>(params, tile, block, loader);
    if (loader.o_is_due)
        await_output<C>(loader.o_parity);
    for (; block_index(block) > tile.block_begin; block = next) {
        next = next_shown<C>(params.problem, tile, block);
        load_k<C>(params, tile, next, loader);
        if (block_index(block) == first_in_o)
            await_output<C>(loader.o_parity);
        load_v<C>(params, tile, block_index(block), sanitises, loader);
    }
    if (tile.block_begin == first_in_o)
        await_output<C>(loader.o_parity);
    load_v<C>(params, tile, tile.block_begin, sanitises, loader);
    loader.o_is_due = tile.block_begin > first_in_o;
}

/* Loads K and V of all tiles of a pass, in one thread of the warp; tiles without blocks have
 * nothing to load. sanitises: V of blocks that a mask cuts is to be sanitised. Returns what ended
 * the pass. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t load_kv_pass(const sm90_params_t &params, bool sanitises,
                                                       kv_loader_t &loader, ring_t &assignments) {
    assignment_of<C> assignment = take_assignment<C>(assignments);
    for (; assignment.index >= 0; assignment = take_assignment<C>(assignments))
        if (has_blocks(assignment.tile) && elect_one())
            load_tile<C>(params, assignment.tile, sanitises, loader);
    return assignment.index;
}

#endif
