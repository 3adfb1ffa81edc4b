/*
 * Two warps load a piece, one of them K and the other V, block after block of the walk, as soon as
 * the consumers have left a stage for it.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_LOAD_CUH
#define FLASH_KERNELS_SM90_DECODE_LOAD_CUH

#include "sm90/decode/transpose.cuh"
#include "sm90/decode/walk.cuh"
#include "sm90/load/kv.cuh"
#include "sm90/load/page_boxes.cuh"
#include "sm90/load/rows.cuh"

/* A stream of keys is K or V, with the stages that it goes to, and their barriers. */
typedef struct key_stream {
    page_pool_t from;     /* in pages or not */
    uint32_t tiles;       /* shared memory of the first stage */
    const uint64_t *full; /* where blocks arrive: of stages to be converted, k_landed or v_landed */
    const uint64_t *empty;
} key_stream_t;

template <flash_config_t C>
static __device__ __forceinline__ key_stream_t k_stream(const sm90_decode_params_t &params) {
    return {k_pool(params, params.cut.attention), k_tile<C>(0), &k_arrival<C>(0),
            block_state<C>().k_empty};
}

template <flash_config_t C>
static __device__ __forceinline__ key_stream_t v_stream(const sm90_decode_params_t &params) {
    if constexpr (transposes<C>)
        return {v_pool(params, params.cut.attention), v_landing<C>(0), block_state<C>().v_landed,
                &v_landing_empty<C>(0)};
    else
        return {v_pool(params, params.cut.attention), v_tile<C>(0), &v_arrival<C>(0, false),
                block_state<C>().v_empty};
}

/* K and V that are read once, and are of at most this many bytes, leave the second-level cache
 * early, as in SM80_DECODE (sm80/decode/load.cuh). */
constexpr int64_t read_once_bytes = 256ll << 20;

/* Returns the hint to L2 for keys. Several tiles of rows read the same ones at about the same
 * time. */
template <flash_config_t C>
static __device__ __forceinline__ uint64_t keys_hint(const decode_params_t &params,
                                                     const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int64_t bytes = block.units * DECODE_UNIT_KEYS * ((int64_t)p.d_head + p.d_head_v) *
                          kv_element_bytes<C> * p.n_heads_kv;
    return params.row_tiles == 1 && bytes <= read_once_bytes ? l2_evict_first : l2_evict_last;
}

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void load_run_of_blocks(const decode_block_t &block,
                                                          const key_walk_t &walk,
                                                          const key_stream_t &to, uint64_t hint) {
    ring_t ring = {0, 0};
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        const int stage = ring.stage;
        const flash_kv_run_t run =
            flash_kv_run(&block.sequence, block.piece.batch_index, nth_key<C>(walk, n));
        load_stage<C, T>(to.from.map, run_box<C>(run, block.first_head_kv, to.from.entry_tokens),
                         to.tiles + stage * kv_bytes<C, T>, to.full[stage], to.empty[stage], ring,
                         hint);
    }
}

/* Returns the first key of the n-th block of the walk; negative: it has fewer. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t nth_key_if_any(const key_walk_t &walk, int32_t n) {
    return n < walk.blocks ? nth_key<C>(walk, n) : -1;
}

template <flash_config_t C, kv_tensor T, typename LOADER>
static __device__ __forceinline__ void
load_paged_blocks(const paged_tensor_t &tensor, const key_walk_t &walk, const key_stream_t &to) {
    ring_t ring = {0, 0};
    LOADER loader = {};
    fetch_ids<C>(tensor, nth_key_if_any<C>(walk, 0), loader);
    await_query_loads<C>();
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        const int stage = ring.stage;
        load_block<C, T>(
            tensor, nth_key<C>(walk, n), nth_key_if_any<C>(walk, n + 1), loader,
            with_holes<C, T>({to.tiles + stage * kv_bytes<C, T>, shared_address(&to.full[stage]),
                              shared_address(&to.empty[stage]), ring.parity},
                             stage));
        step<kv_stages<C, T>>(ring);
    }
    finish_blocks<C>(loader);
}

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void
load_paged_walk(const sm90_decode_params_t &params, const decode_block_t &block,
                const key_walk_t &walk, const key_stream_t &to) {
    const paged_tensor_t tensor =
        find_pages<C>(params.cut.attention, params.paging, to.from, block.piece.batch_index,
                      (int32_t)block.sequence.k_begin, block.sequence.len_k, block.first_head_kv,
                      keys_hint<C>(params.cut, block));
    if (params.paging.box_keys > 0)
        load_paged_blocks<C, T, box_loader_t>(tensor, walk, to);
    else
        load_paged_blocks<C, T, row_loader_t>(tensor, walk, to);
}

/* Loads all blocks of the walk: this is the warp's whole work. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void load_walk(const sm90_decode_params_t &params,
                                                 const decode_block_t &block,
                                                 const key_walk_t &walk, const key_stream_t &to) {
    if constexpr (has_pages<C>) {
        load_paged_walk<C, T>(params, block, walk, to);
    } else {
        await_query_loads<C>();
        if (elect_one())
            load_run_of_blocks<C, T>(block, walk, to, keys_hint<C>(params.cut, block));
    }
}

#endif
