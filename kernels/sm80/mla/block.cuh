/*
 * This file has what blocks of SM80_MLA and of SM80_WIDE do alike, around their walks over keys and
 * in the second turn of a round.
 */
#ifndef FLASH_KERNELS_SM80_MLA_BLOCK_CUH
#define FLASH_KERNELS_SM80_MLA_BLOCK_CUH

#include "common/ptx/dependent_launch.cuh"
#include "sm80/mla/key_source.cuh"
#include "sm80/mla/result.cuh"
#include "sm80/mla/sanitise_v.cuh"

/* Returns the stage after this one. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t next_stage(uint32_t stage, uint32_t ring) {
    return stage == ring + ring_bytes<C> - stage_bytes<C> ? ring : stage + stage_bytes<C>;
}

/* V's source, where V is not in K. */
template <flash_config_t C, bool V_IN_K = v_in_k<C>> struct values_source {};
template <flash_config_t C> struct values_source<C, false> { key_source_t source; };

/* All threads know this of the block. It lies in shared memory, because registers are full. */
template <flash_config_t C> struct block_facts {
    decode_block_t block;
    key_walk_t walk;
    key_source_t source; /* of K */
    step_units<C> units;
    [[no_unique_address]] values_source<C> values;
};

template <key_tensor T, flash_config_t C>
static __device__ __forceinline__ const key_source_t &tensor_source(const block_facts<C> &facts) {
    if constexpr (T == TENSOR_K)
        return facts.source;
    else
        return facts.values.source;
}

/* Adds the step that begins with a key to O. */
template <flash_config_t C>
static __device__ __forceinline__ void value_step(output_tile<C> &o, const mla_exchange<C> &shared,
                                                  const key_walk_t &walk, int32_t step_key,
                                                  int parity, uint32_t stage) {
    if (is_cut<C>(walk, step_key))
        sanitise_v<C>(o, shared, stage, step_key);
    multiply_p_v<C>(o, shared, parity, stage);
}

/* Ends a round with a barrier. Where a score of the step that begins with `key` has outgrown the
 * maxima, these are raised first, and P is computed again. sum: of P of the step. */
template <flash_config_t C>
static __device__ __forceinline__ void
end_round(output_tile<C> &o, mla_exchange<C> &shared, softmax_state_t &state, float (&sum)[2],
          bool has_outgrown, int32_t key, int parity, const block_facts<C> &facts,
          const sm80_decode_params_t &params) {
    if (__syncthreads_or(has_outgrown)) {
        raise_max<C>(state, shared, facts.walk, key, facts.units);
        exponentiate<C, true>(sum, shared, state, facts.walk, key, parity, facts.units, params,
                              facts.source);
        __syncthreads();
        rescale<C>(o, shared);
    }
    state.sum[0] += sum[0];
    state.sum[1] += sum[1];
}

/* Computes what the block has to. process(facts, ring, shared, o, state) does the walk; ring: the
 * first stage of keys. */
template <flash_config_t C, typename F>
static __device__ __forceinline__ void run_block(const sm80_decode_params_t &params,
                                                 const F &process) {
    assert_mla<C>();
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ block_facts<C> facts;
    static_assert(sizeof facts <= DECODE_STATIC_SHARED_BYTES, "as the host counts");
    mla_exchange<C> &shared = *(mla_exchange<C> *)(memory + sm80_mla_key_bytes(&C));
    static_assert(sizeof(cut_scratch<C>) <= sizeof shared.scores, "the scratch lies over scores");
    decode_block_t block;
    launch_dependents();
    if (!find_block<C>(params, *(cut_scratch<C> *)&shared, block))
        return;
    const key_walk_t walk = find_walk<C>(params, block);
    if (threadIdx.x == 0) {
        facts.block = block;
        facts.walk = walk;
        facts.source = find_key_source<C, TENSOR_K>(params, block);
        find_units<C>(facts.units, params.attention);
        if constexpr (!v_in_k<C>)
            facts.values.source = find_key_source<C, TENSOR_V>(params, block);
    }
    stage_rows<C>(shared, params, block, walk);
    __syncthreads();
    output_tile<C> o = {};
    softmax_state_t state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    process(facts, shared_address(memory), shared, o, state);
    finish_block<C>(params, facts.block, o, state, shared_address(memory), shared,
                    facts.units.of[has_bias<C>]);
}

#endif
