/*
 * The SM80_WIDE kernel computes attention of heads of 257 to 512 columns. A block has one piece of
 * a sequence's keys for a tile of B_r packed rows (queries x query heads); pieces are merged by
 * flash_sm80_decode_combine. Warps share the scores of rows and the columns of O as in SM80_MLA,
 * whose parts these are (sm80/mla/); but V is a tensor of its own.
 *
 * A round has two turns, with a barrier after each. In the second, half of the warps begin with P
 * and the others with O:
 *
 *     turn 1    S of step n + 1, in parts; loads of K of step n + n_stages and of V of the one
 * before turn 2    P of step n + 1, O += P V of step n
 *
 * With e4m3 the warps that have multiplied by V of step n convert K of step n + 2 and V of step
 * n + 1, and load those that are n_stages steps later (wide/convert.cuh).
 *
 * A generated wrapper gives each configuration its name, as in mla.cuh.
 */
#ifndef FLASH_KERNELS_SM80_WIDE_CUH
#define FLASH_KERNELS_SM80_WIDE_CUH

#include "sm80/wide/convert.cuh"
#include "sm80/wide/load.cuh"

/* A thread knows this of the keys that are on their way: of 16 bits, or to be converted. */
template <flash_config_t C, bool CONVERTS = converts<C>> struct key_copies { pair_ids<C> ids; };
template <flash_config_t C> struct key_copies<C, true> { landing_pairs_t pairs; };

/* Loads Q, and starts to load keys. Leaves those of the first step in the first stage of K, as soon
 * as all threads get there. */
template <flash_config_t C>
static __device__ __forceinline__ void
begin_wide_walk(query_fragments<C> &q, key_copies<C> &copies, const sm80_decode_params_t &params,
                const block_facts<C> &facts, uint32_t rings, mla_exchange<C> &shared) {
    load_queries<C>(q, params, facts.block); /* first: nothing can begin without it */
    if constexpr (converts<C>) {
        copies.pairs.first = rings + all_rings_bytes<C>;
        fill_pairs<C>(copies.pairs, params, facts);
        prepare_queries<C>(q, shared, params.attention, facts.block);
        convert_pair_of_tensors<C, false>(rings, copies.pairs, params, facts,
                                          facts.walk.begin - C.B_c);
    } else {
        fill_rings<C>(rings, copies.ids, params, facts);
        async_copy_wait_all_but<groups_beside_keys<C>>();
    }
    __syncthreads();
}

/* Computes the warp's part of the scores of the step that begins with `key`, beside the round's
 * copies. k_stage, v_stage: which are free. */
template <flash_config_t C>
static __device__ __forceinline__ void
wide_score_step(const query_fragments<C> &q, mla_exchange<C> &shared, uint32_t stage,
                uint32_t k_stage, uint32_t v_stage, int32_t key, key_copies<C> &copies,
                const sm80_decode_params_t &params, const block_facts<C> &facts) {
    score_tile<C> s;
    if constexpr (converts<C>)
        multiply_q_k<C>(s, q, stage, [](int) {});
    else
        multiply_beside_copies<C>(s, q, stage, k_stage, v_stage, key, copies.ids, params, facts);
    leave_scores<C>(shared, s);
}

/* Computes all steps of the walk. Each round of the loop has the scores and P of the step that
 * begins with `key`, and O of the step before, whose V lies in the stage of that number. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_wide_walk(const sm80_decode_params_t &params, const block_facts<C> &facts, uint32_t rings,
                  mla_exchange<C> &shared, output_tile<C> &o, softmax_state_t &state) {
    constexpr uint32_t last = ring_bytes<C> - stage_bytes<C>;
    const key_walk_t &walk = facts.walk;
    query_fragments<C> q;
    key_copies<C> copies;
    begin_wide_walk<C>(q, copies, params, facts, rings, shared);
    uint32_t stage = rings + last; /* of the step before; with e4m3 there is one */
    uint32_t free_stage = stage == rings ? stage : stage - stage_bytes<C>;
    int parity = 0;
#pragma unroll 1
    for (int32_t key = walk.begin; key < walk.end + C.B_c; key += C.B_c) {
        const uint32_t score_stage = next_stage<C>(stage, rings);
        if (key < walk.end)
            wide_score_step<C>(q, shared, score_stage, stage, free_stage + ring_bytes<C>, key,
                               copies, params, facts);
        if constexpr (!converts<C>) {
            if (key < walk.end)
                async_copy_wait_all_but<groups_beside_values<C>>();
            else
                async_copy_wait_all();
        }
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
                value_step<C>(o, shared, walk, key - C.B_c, parity ^ 1, stage + ring_bytes<C>);
            if constexpr (converts<C>)
                if (!is_for_p && key < walk.end)
                    convert_pair_of_tensors<C, true>(rings, copies.pairs, params, facts, key);
        }
        if constexpr (!converts<C>)
            async_copy_wait_all_but<groups_beside_keys<C>>();
        end_round<C>(o, shared, state, sum, has_outgrown, key, parity, facts, params);
        free_stage = stage;
        stage = score_stage;
        parity ^= 1;
    }
    async_copy_wait_all(); /* of zeros, beyond the walk: results lie over them */
}

template <flash_config_t C>
static __device__ __forceinline__ void sm80_wide(const sm80_decode_params_t &params) {
    static_assert(!v_in_k<C>, "a configuration of another family");
    static_assert(C.n_stages >= 2, "one is in use while the other is loaded");
    run_block<C>(params, [&](const auto &facts, uint32_t ring, auto &shared, auto &o, auto &state) {
        process_wide_walk<C>(params, facts, ring, shared, o, state);
    });
}

#endif
