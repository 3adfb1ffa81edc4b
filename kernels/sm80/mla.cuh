/*
 * The SM80_MLA kernel computes attention whose V is the first columns of K, for a single K/V head
 * or few, as multi-head latent attention (MLA) has it: K is read once and multiplied twice. A block
 * has one piece of a sequence's keys for a tile of B_r packed rows (queries x query heads); pieces
 * are merged by flash_sm80_decode_combine.
 *
 * The warps work in two turns, with a barrier after each, so that those of one turn are busy with
 * mma at the same time:
 *
 *     turn 1    S of step n + 1, in parts      O += P V of step n
 *     turn 2    P of step n + 1                loads of step n + n_stages
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

#include "common/ptx/dependent_launch.cuh"
#include "sm80/mla/load.cuh"
#include "sm80/mla/result.cuh"
#include "sm80/mla/sanitise_v.cuh"

/* Returns the stage after this one. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t next_stage(uint32_t stage, uint32_t ring) {
    return stage == ring + (C.n_stages - 1) * stage_bytes<C> ? ring : stage + stage_bytes<C>;
}

/* What all threads know of the block lies in shared memory, because registers are full. */
typedef struct block_facts {
    decode_block_t block;
    key_walk_t walk;
    key_source_t source;
    score_unit_t unit;
} block_facts_t;

/* Starts to load the steps of all stages; a step that the walk does not have makes a group of no
 * copies. */
template <flash_config_t C>
static __device__ __forceinline__ void fill_ring(uint32_t ring, page_ids<C> &ids,
                                                 const sm80_decode_params_t &params,
                                                 const block_facts_t &facts) {
    const key_walk_t &walk = facts.walk;
    fetch_ids<C>(ids, facts.source, params, walk.begin + find_copy_place<C>().line, walk.end);
#pragma unroll 1
    for (int i = 0; i < C.n_stages; ++i) {
        const int32_t step_key = walk.begin + i * C.B_c;
        if (step_key < walk.end)
            load_keys<C>(ring + i * stage_bytes<C>, ids, facts.source, params, step_key, walk.end);
        async_copy_commit();
    }
}

/* Computes all steps of the walk. Each round of the loop has the scores of the step that begins
 * with `key` and O of the step before, which lies in `stage`. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_walk(const sm80_decode_params_t &params, const block_facts_t &facts, uint32_t ring,
             mla_exchange<C> &shared, output_tile<C> &o, softmax_state_t &state) {
    const key_walk_t &walk = facts.walk;
    page_ids<C> ids;
    fill_ring<C>(ring, ids, params, facts);
    query_fragments<C> q;
    load_queries<C>(q, params, facts.block);
    uint32_t stage = ring + (C.n_stages - 1) * stage_bytes<C>;
    async_copy_wait_all_but<C.n_stages - 1>();
    __syncthreads();
#pragma unroll 1
    for (int32_t key = walk.begin; key < walk.end + C.B_c; key += C.B_c) {
        const bool is_first = key == walk.begin;
        const uint32_t score_stage = next_stage<C>(stage, ring);
        if (key < walk.end) {
            score_tile<C> s;
            multiply_q_k<C>(s, q, score_stage);
            leave_scores<C>(shared, s);
        }
        if (!is_first) {
            rescale<C>(o, shared);
            if (is_cut<C>(walk, key - C.B_c))
                sanitise_v<C>(o, shared, stage, key - C.B_c);
            multiply_p_v<C>(o, shared, stage);
        }
        __syncthreads();
        if (!is_first) {
            const int32_t step_key = key + (C.n_stages - 1) * C.B_c;
            if (step_key < walk.end)
                load_keys<C>(stage, ids, facts.source, params, step_key, walk.end);
            async_copy_commit();
        }
        stage = score_stage;
        if (key < walk.end)
            softmax_step<C>(shared, state, walk, key, facts.unit);
        async_copy_wait_all_but<C.n_stages - 2>();
        __syncthreads();
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void sm80_mla(const sm80_decode_params_t &params) {
    assert_mla<C>();
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ block_facts_t facts;
    static_assert(sizeof facts <= DECODE_STATIC_SHARED_BYTES, "as the host counts");
    mla_exchange<C> &shared = *(mla_exchange<C> *)(memory + C.n_stages * stage_bytes<C>);
    static_assert(sizeof(cut_scratch<C>) <= sizeof shared.scores, "the scratch lies over scores");
    decode_block_t block;
    launch_dependents();
    if (!find_block<C>(params, *(cut_scratch<C> *)&shared, block))
        return;
    const key_walk_t walk = find_walk<C>(params, block);
    if (threadIdx.x == 0) {
        facts.block = block;
        facts.walk = walk;
        facts.source = find_key_source<C>(params, block);
        facts.unit = score_unit_of<true>(params.attention);
    }
    stage_rows<C>(shared, params, block, walk);
    __syncthreads();
    output_tile<C> o = {};
    softmax_state_t state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    process_walk<C>(params, facts, shared_address(memory), shared, o, state);
    finish_block<C>(params, facts.block, o, state, shared_address(memory), shared, facts.unit);
}

#endif
