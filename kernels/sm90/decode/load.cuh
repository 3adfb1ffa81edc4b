/*
 * Two warps load a piece, one K and one V: block after block of the walk, as soon as the consumers
 * have left a stage for it.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_LOAD_CUH
#define FLASH_KERNELS_SM90_DECODE_LOAD_CUH

#include "sm90/decode/walk.cuh"
#include "sm90/load/kv.cuh"

/* A stream of keys is K or V, with the stages that it goes to, and their barriers. */
typedef struct key_stream {
    const sm90_tensor_map_t *map;
    const int32_t *page_table; /* NULL: a cache of slots, or none of pages */
    int32_t entry_tokens;
    uint32_t tiles; /* shared memory of the first stage */
    const uint64_t *full;
    const uint64_t *empty;
} key_stream_t;

template <flash_config_t C>
static __device__ __forceinline__ key_stream_t k_stream(const sm90_decode_params_t &params) {
    const block_state_t &state = block_state<C>();
    return {&params.k,
            params.cut.attention.pages.table,
            params.entry_tokens.k,
            k_tile<C>(0),
            state.k_full,
            state.k_empty};
}

template <flash_config_t C>
static __device__ __forceinline__ key_stream_t v_stream(const sm90_decode_params_t &params) {
    const block_state_t &state = block_state<C>();
    return {&params.v,
            params.cut.attention.pages.v_table,
            params.entry_tokens.v,
            v_tile<C>(0),
            state.v_full,
            state.v_empty};
}

template <flash_config_t C>
static __device__ __forceinline__ paged_tensor_t pages_of(const sm90_decode_params_t &params,
                                                          const decode_block_t &block,
                                                          const key_stream_t &stream) {
    const flash_params_t &p = params.cut.attention;
    const int64_t first_id = flash_kv_first_id(&p, block.piece.batch_index);
    return {stream.map,           &p.pages,
            &params.paging,       p.pages.table ? stream.page_table + first_id : NULL,
            (int32_t)first_id,    stream.entry_tokens,
            block.sequence.len_k, block.first_head_kv};
}

template <flash_config_t C, int STAGES>
static __device__ __forceinline__ void
load_run_of_blocks(const decode_block_t &block, const key_walk_t &walk, const key_stream_t &to) {
    ring_t ring = {0, 0};
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        const int stage = ring.stage;
        const flash_kv_run_t run =
            flash_kv_run(&block.sequence, block.piece.batch_index, nth_key<C>(walk, n));
        load_stage<C, STAGES>(to.map, run_box<C>(run, block.first_head_kv, to.entry_tokens),
                              to.tiles + stage * kv_bytes<C>, to.full[stage], to.empty[stage],
                              ring);
    }
}

template <flash_config_t C, int STAGES>
static __device__ __forceinline__ void
load_paged_blocks(const paged_tensor_t &tensor, const key_walk_t &walk, const key_stream_t &to) {
    ring_t ring = {0, 0};
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        const int stage = ring.stage;
        load_pages<C, STAGES>(tensor, nth_key<C>(walk, n), to.tiles + stage * kv_bytes<C>,
                              to.full[stage], to.empty[stage], ring);
    }
}

/* Loads all blocks of the walk: this is the warp's whole work. */
template <flash_config_t C, int STAGES>
static __device__ __forceinline__ void load_walk(const sm90_decode_params_t &params,
                                                 const decode_block_t &block,
                                                 const key_walk_t &walk, const key_stream_t &to) {
    if constexpr (has_pages<C>)
        load_paged_blocks<C, STAGES>(pages_of<C>(params, block, to), walk, to);
    else if (elect_one())
        load_run_of_blocks<C, STAGES>(block, walk, to);
}

#endif
