/*
 * The SM80_MLA kernel computes attention whose V is the first columns of K, for a single K/V head
 * or few, as multi-head latent attention (MLA) has it: K is read once and multiplied twice. A block
 * has one piece of a sequence's keys for a tile of B_r packed rows (queries x query heads); pieces
 * are merged by flash_sm80_decode_combine.
 *
 * The warps work in two turns, with a barrier after each. In the second, half of the warps begin
 * with P and the others with O, so that the tensor cores are busy meanwhile:
 *
 *     turn 1    S of step n + 1, in parts; loads of step n + n_stages - 1
 *     turn 2    P of step n + 1, O += P V of step n
 *
 * With e4m3 the warps that have multiplied by V of step n convert step n + 2, in place of it, and
 * load step n + 2 + n_stages (mla/convert.cuh). P begins with ALiBi and masks (mla/bias.cuh).
 *
 * A generated wrapper gives each configuration its name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void
 *     __launch_bounds__(decode_block_threads(&config), sm80_mla_blocks_per_sm(&config))
 *     NAME(const __grid_constant__ sm80_decode_params_t params) {
 *         sm80_mla<config>(params);
 *     }
 */
#ifndef FLASH_KERNELS_SM80_MLA_CUH
#define FLASH_KERNELS_SM80_MLA_CUH

#include "sm80/mla/block.cuh"
#include "sm80/mla/convert.cuh"
#include "sm80/mla/load.cuh"

/* Starts to load the first steps into all stages; a step that the walk does not have makes a group
 * of no copies. All page ids are fetched at the same time, with those of the step after them. */
template <flash_config_t C>
static __device__ __forceinline__ void fill_ring(uint32_t ring, page_ids<C> &next_ids,
                                                 const sm80_decode_params_t &params,
                                                 const block_facts<C> &facts) {
    const key_walk_t &walk = facts.walk;
    page_ids<C> ids[C.n_stages];
#pragma unroll
    for (int i = 0; i < C.n_stages; ++i)
        fetch_ids<C>(ids[i], facts.source, params, walk.begin + i * C.B_c, walk.end);
    fetch_ids<C>(next_ids, facts.source, params, walk.begin + C.n_stages * C.B_c, walk.end);
#pragma unroll
    for (int i = 0; i < C.n_stages; ++i) {
        const int32_t step_key = walk.begin + i * C.B_c;
        if (step_key < walk.end) {
            const step_copies<C> copies = find_copies<C, TENSOR_K>(
                ring + i * stage_bytes<C>, ids[i], facts.source, params, step_key, walk.end);
#pragma unroll
            for (int n = 0; n < panel_passes<C>; ++n)
                copy_panel<C>(copies, n);
        }
        async_copy_commit();
    }
}

/* Computes the warp's part of the scores of the step in `stage`. Beside the products it loads the
 * step that begins with load_key, if there is one, into load_stage; e4m3 is loaded elsewhere. ids:
 * of that step; of the next one after it. */
template <flash_config_t C>
static __device__ __forceinline__ void
score_step(const query_fragments<C> &q, mla_exchange<C> &shared, uint32_t stage,
           uint32_t load_stage, int32_t load_key, page_ids<C> &ids,
           const sm80_decode_params_t &params, const block_facts<C> &facts) {
    constexpr int spread = warp_steps<C> / panel_passes<C>; /* steps of the contraction per panel */
    score_tile<C> s;
    if (!converts<C> && load_key < facts.walk.end) {
        const step_copies<C> copies = find_copies<C, TENSOR_K>(load_stage, ids, facts.source,
                                                               params, load_key, facts.walk.end);
        fetch_ids<C>(ids, facts.source, params, load_key + C.B_c, facts.walk.end);
        multiply_q_k<C>(s, q, stage, [&](int i) {
            if (i % spread == 0 && i / spread < panel_passes<C>)
                copy_panel<C>(copies, i / spread);
        });
    } else {
        multiply_q_k<C>(s, q, stage, [](int) {});
    }
    leave_scores<C>(shared, s);
}

/* Loads Q, and starts to load keys. Leaves those of the first step in the first stage, as soon as
 * all threads get there. */
template <flash_config_t C>
static __device__ __forceinline__ void
begin_walk(query_fragments<C> &q, page_ids<C> &ids, landing_ring_t &landings,
           const sm80_decode_params_t &params, const block_facts<C> &facts, uint32_t ring,
           mla_exchange<C> &shared) {
    load_queries<C>(q, params, facts.block); /* first: nothing can begin without it */
    if constexpr (converts<C>) {
        const key_walk_t &walk = facts.walk;
        landings.first = ring + ring_bytes<C>;
        fill_landings<C>(landings, params, facts.source, walk);
        prepare_queries<C>(q, shared, params.attention, facts.block);
        if (walk.begin < walk.end)
            convert_step<C>(ring, landings, params, facts.source, walk, walk.begin);
    } else {
        fill_ring<C>(ring, ids, params, facts);
        async_copy_wait_all_but<C.n_stages - 1>();
    }
    __syncthreads();
}

/* Computes all steps of the walk. Each round of the loop has the scores and P of the step that
 * begins with `key`, and O of the step before, which lies in `stage`. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_walk(const sm80_decode_params_t &params, const block_facts<C> &facts, uint32_t ring,
             mla_exchange<C> &shared, output_tile<C> &o, softmax_state_t &state) {
    const key_walk_t &walk = facts.walk;
    query_fragments<C> q;
    page_ids<C> ids;
    landing_ring_t landings;
    begin_walk<C>(q, ids, landings, params, facts, ring, shared);
    uint32_t stage = ring + ring_bytes<C> - stage_bytes<C>;
    uint32_t free_stage = stage - stage_bytes<C>;
    int parity = 0;
#pragma unroll 1
    for (int32_t key = walk.begin; key < walk.end + C.B_c; key += C.B_c) {
        const uint32_t score_stage = next_stage<C>(stage, ring);
        const int32_t load_key =
            key < walk.begin + 2 * C.B_c ? walk.end : key + (C.n_stages - 2) * C.B_c;
        if (key < walk.end)
            score_step<C>(q, shared, score_stage, free_stage, load_key, ids, params, facts);
        if (!converts<C> && key >= walk.begin + 2 * C.B_c)
            async_copy_commit();
        __syncthreads();
        float sum[2] = {0.0f, 0.0f};
        bool has_outgrown = false;
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {
            const bool is_for_p = i == warp_number() / (C.n_warps / 2);
            if (is_for_p && key < walk.end)
                has_outgrown = exponentiate<C, false>(sum, shared, state, walk, key, parity,
                                                      facts.units, params, facts.source);
            if (!is_for_p && key > walk.begin)
                value_step<C>(o, shared, walk, key - C.B_c, parity ^ 1, stage);
            if (converts<C> && !is_for_p && key + C.B_c < walk.end)
                convert_step<C>(stage, landings, params, facts.source, walk, key + C.B_c);
        }
        if constexpr (!converts<C>)
            async_copy_wait_all_but<C.n_stages - 3>();
        end_round<C>(o, shared, state, sum, has_outgrown, key, parity, facts, params);
        free_stage = stage;
        stage = score_stage;
        parity ^= 1;
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void sm80_mla(const sm80_decode_params_t &params) {
    static_assert(v_in_k<C>, "a configuration of another family");
    static_assert(C.n_stages >= 3, "two in use while one is loaded");
    run_block<C>(params, [&](const auto &facts, uint32_t ring, auto &shared, auto &o, auto &state) {
        process_walk<C>(params, facts, ring, shared, o, state);
    });
}

#endif
