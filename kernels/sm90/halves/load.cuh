/*
 * One warp loads a piece's blocks of K, and another those of V unless it lies in K, part after
 * part, as soon as the consumers that read them have left a stage.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_LOAD_CUH
#define FLASH_KERNELS_SM90_HALVES_LOAD_CUH

#include "sm90/decode/load.cuh"
#include "sm90/halves/state.cuh"

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void await_stage(const ring_t &ring) {
    mbarrier_wait(shared_address(&halves_state<C>().of[T].empty[ring.stage]), ring.parity ^ 1);
}

/* Returns the barrier at which a panel of what is loaded arrives. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ uint32_t arrival(const ring_t &ring, int panel) {
    if constexpr (converts<C>)
        return shared_address(&halves_state<C>().of[T].landed[ring.stage]);
    else
        return part_barrier<C, T>(ring, panel / part_panels<C, T>);
}

/* The map of K or V, and for latent tokens, one that ends behind their scales. */
typedef struct key_maps {
    const sm90_tensor_map_t *keys;
    const sm90_tensor_map_t *scales;
} key_maps_t;

/* Starts to load a box of all panels. first_row: its place in the block. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void load_panels(const key_maps_t &maps, tma_box_t box,
                                                   const ring_t &ring, int first_row) {
    const uint32_t shared = stage_tile<C, T>(ring.stage) + first_row * SM90_PANEL_BYTES;
#pragma unroll
    for (int i = 0; i < landing_panels<C, T>; ++i) {
        box.column = landing_byte<C>(i) / kv_element_bytes<C>;
        tma_load<true>(shared + landing_offset<C, T> + i * kv_panel_bytes<C>, maps.keys, box,
                       arrival<C, T>(ring, i), keys_policy<C>);
    }
    if constexpr (is_latent<C>) {
        box.column = LATENT_SCALES_AT;
        tma_load<true>(shared + latent_scales_offset<C>, maps.scales, box, arrival<C, T>(ring, 0),
                       keys_policy<C>);
    }
}

/* Announces the bytes of a block, in one thread. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void announce_block(const ring_t &ring) {
#pragma unroll
    for (int part = 0; part < arrivals<C, T>; ++part)
        mbarrier_arrive_expect(arrival<C, T>(ring, part * part_panels<C, T>),
                               loaded_bytes<C, T> / arrivals<C, T>);
}

/* ---- A contiguous sequence ---- */

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void load_run(const key_maps_t &maps, int32_t entry_tokens,
                                                const decode_block_t &block, const key_walk_t &walk,
                                                ring_t &ring) {
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        const flash_kv_run_t run =
            flash_kv_run(&block.sequence, block.piece.batch_index, nth_key<C>(walk, n));
        await_stage<C, T>(ring);
        announce_block<C, T>(ring);
        load_panels<C, T>(maps, run_box<C>(run, block.first_head_kv, entry_tokens), ring, 0);
        step<C.n_stages>(ring);
    }
}

/* ---- Pages, in boxes or row by row ---- */

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void
load_paged_block(const paged_tensor_t &tensor, const key_maps_t &maps, int32_t begin,
                 int32_t next_begin, box_loader_t &loader, const ring_t &ring) {
    const int32_t row = (int32_t)lane_index() * tensor.paging->box_keys;
    const tma_box_t box = page_box<C>(tensor, loader.id, begin + row);
    fetch_ids<C>(tensor, next_begin, loader);
    await_stage<C, T>(ring);
    if constexpr (T == TENSOR_K)
        tell_holes<C>(tensor, begin, halves_state<C>().k_holes[ring.stage]);
    if (lane_index() == 0)
        announce_block<C, T>(ring);
    __syncwarp();
    if (row < C.B_c)
        load_panels<C, T>(maps, box, ring, row);
    __syncwarp();
}

/* Starts to copy the scales of the lane's rows to where TMA would write them. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_scales(const paged_tensor_t &tensor,
                                                   const row_tokens<C> &rows, uint32_t shared) {
#pragma unroll
    for (int i = 0; i < lane_rows<C>; ++i) {
        const int row = i * warp_threads + lane_row();
        const uint32_t to =
            shared + latent_scales_offset<C> + row * SM90_PANEL_BYTES + row % 8 * SM90_CHUNK_BYTES;
        const uint64_t token = (uint64_t)(uint32_t)rows.of[i] * tensor.pool.token_bytes;
        async_copy_or_zero(to, tensor.head + token + LATENT_SCALES_AT, rows.of[i] >= 0);
    }
}

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void
load_paged_block(const paged_tensor_t &tensor, const key_maps_t &, int32_t begin,
                 int32_t next_begin, row_loader_t &loader, const ring_t &ring) {
    const row_tokens<C> rows = find_block_rows<C>(tensor, begin);
    fetch_ids<C>(tensor, next_begin, loader);
    await_stage<C, T>(ring);
    if constexpr (T == TENSOR_K)
        tell_holes<C>(tensor, begin, halves_state<C>().k_holes[ring.stage]);
    if constexpr (is_latent<C>)
        copy_scales<C>(tensor, rows, stage_tile<C, T>(ring.stage));
    copy_block_rows<C, T>(tensor, rows, stage_tile<C, T>(ring.stage));
#pragma unroll
    for (int part = 0; part < arrivals<C, T>; ++part)
        hand_on_rows(arrival<C, T>(ring, part * part_panels<C, T>));
}

/* is_first: of the block's tiles. */
template <flash_config_t C, kv_tensor T, typename LOADER>
static __device__ __forceinline__ void load_pages(const paged_tensor_t &tensor,
                                                  const key_maps_t &maps, const key_walk_t &walk,
                                                  ring_t &ring, bool is_first) {
    LOADER loader = {};
    fetch_ids<C>(tensor, nth_key_if_any<C>(walk, 0), loader);
    if (is_first)
        await_query_loads<C>();
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        load_paged_block<C, T>(tensor, maps, nth_key<C>(walk, n), nth_key_if_any<C>(walk, n + 1),
                               loader, ring);
        step<C.n_stages>(ring);
    }
}

/* Loads all blocks of the walk of the block's first tile, or of a later one. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void
load_all(const sm90_decode_params_t &params, const decode_block_t &block, const key_walk_t &walk,
         const page_pool_t &from, ring_t &ring, bool is_first) {
    const key_maps_t maps = {from.map, &params.v};
    if constexpr (has_pages<C>) {
        const paged_tensor_t tensor = find_pages<C>(
            params.cut.attention, params.paging, from, block.piece.batch_index,
            (int32_t)block.sequence.k_begin, block.sequence.len_k, block.first_head_kv);
        if (params.paging.box_keys > 0)
            load_pages<C, T, box_loader_t>(tensor, maps, walk, ring, is_first);
        else
            load_pages<C, T, row_loader_t>(tensor, maps, walk, ring, is_first);
    } else {
        if (is_first)
            await_query_loads<C>();
        if (elect_one())
            load_run<C, T>(maps, from.entry_tokens, block, walk, ring);
    }
}

#endif
