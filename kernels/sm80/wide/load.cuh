/*
 * All warps load keys of 16 bits, of K and of V, as those of SM80_MLA load K (mla/load.cuh). In the
 * round of step r, whose scores are computed while O is added up of step r - 1, two copies are on
 * their way: K of step r + n_stages - 1 and V of step r + n_stages - 2, each a group of its own, in
 * this order. So K has arrived a round before it is multiplied, and V half a round.
 *
 * Steps beyond the walk are copied as zeros, without reading any memory.
 */
#ifndef FLASH_KERNELS_SM80_WIDE_LOAD_CUH
#define FLASH_KERNELS_SM80_WIDE_LOAD_CUH

#include "sm80/mla/block.cuh"
#include "sm80/mla/load.cuh"

/* Steps from the one whose scores are computed to the one that is copied. */
template <flash_config_t C, key_tensor T>
constexpr int steps_ahead = T == TENSOR_K ? C.n_stages - 1 : C.n_stages - 2;

/* Groups of copies that may be on their way when a round's V is multiplied, and when it ends. */
template <flash_config_t C> constexpr int groups_beside_values = 2 * C.n_stages - 2;
template <flash_config_t C> constexpr int groups_beside_keys = 2 * C.n_stages - 3;

/* The ids of the pages of the thread's keys in the steps that are copied next. */
template <flash_config_t C> struct pair_ids { page_ids<C> of[key_tensors<C>]; };

/* Loads the ids of a tensor's step that begins with a key. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ void
fetch_tensor_ids(pair_ids<C> &ids, const block_facts<C> &facts, const sm80_decode_params_t &params,
                 int32_t step_key) {
    fetch_ids<C>(ids.of[T], tensor_source<T>(facts), params, step_key, facts.walk.end);
}

/* Finds the copies of a tensor's step that begins with a key. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ step_copies<C>
find_tensor_copies(uint32_t stage, const pair_ids<C> &ids, const block_facts<C> &facts,
                   const sm80_decode_params_t &params, int32_t step_key) {
    return find_copies<C, T>(stage, ids.of[T], tensor_source<T>(facts), params, step_key,
                             facts.walk.end);
}

/* Copies a tensor's step at once, and loads the ids of the next one. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ void
copy_step_at_once(uint32_t stage, pair_ids<C> &ids, const block_facts<C> &facts,
                  const sm80_decode_params_t &params, int32_t step_key) {
    const step_copies<C> copies = find_tensor_copies<C, T>(stage, ids, facts, params, step_key);
    fetch_tensor_ids<C, T>(ids, facts, params, step_key + C.B_c);
#pragma unroll
    for (int n = 0; n < panel_passes<C>; ++n)
        copy_panel<C>(copies, n);
}

/* Starts to load the first steps, as rounds before the first one would. rings: the first stage of
 * K. */
template <flash_config_t C>
static __device__ __forceinline__ void fill_rings(uint32_t rings, pair_ids<C> &ids,
                                                  const sm80_decode_params_t &params,
                                                  const block_facts<C> &facts) {
    const key_walk_t &walk = facts.walk;
    fetch_tensor_ids<C, TENSOR_K>(ids, facts, params, walk.begin);
    fetch_tensor_ids<C, TENSOR_V>(ids, facts, params, walk.begin);
#pragma unroll
    for (int i = 0; i < steps_ahead<C, TENSOR_K>; ++i) {
        copy_step_at_once<C, TENSOR_K>(rings + i * stage_bytes<C>, ids, facts, params,
                                       walk.begin + i * C.B_c);
        async_copy_commit();
        if (i > 0)
            copy_step_at_once<C, TENSOR_V>(rings + ring_bytes<C> + (i - 1) * stage_bytes<C>, ids,
                                           facts, params, walk.begin + (i - 1) * C.B_c);
        async_copy_commit();
    }
}

/* Computes the warp's part of the scores of the step that begins with `key`, and spreads the copies
 * of the round over the products. k_stage, v_stage: which are free. Ids are loaded at the end,
 * since registers are full before. */
template <flash_config_t C>
static __device__ __forceinline__ void
multiply_beside_copies(score_tile<C> &s, const query_fragments<C> &q, uint32_t stage,
                       uint32_t k_stage, uint32_t v_stage, int32_t key, pair_ids<C> &ids,
                       const sm80_decode_params_t &params, const block_facts<C> &facts) {
    constexpr int passes_of_both = 2 * panel_passes<C>;
    const int32_t k_key = key + steps_ahead<C, TENSOR_K> * C.B_c;
    const int32_t v_key = key + steps_ahead<C, TENSOR_V> * C.B_c;
    step_copies<C> copies = find_tensor_copies<C, TENSOR_K>(k_stage, ids, facts, params, k_key);
    multiply_q_k<C>(s, q, stage, [&](int i) {
#pragma unroll
        for (int n = i * passes_of_both / warp_steps<C>;
             n < (i + 1) * passes_of_both / warp_steps<C>; ++n) {
            if (n == panel_passes<C>) {
                async_copy_commit();
                copies = find_tensor_copies<C, TENSOR_V>(v_stage, ids, facts, params, v_key);
            }
            copy_panel<C>(copies, n % panel_passes<C>);
        }
    });
    async_copy_commit();
    fetch_tensor_ids<C, TENSOR_K>(ids, facts, params, k_key + C.B_c);
    fetch_tensor_ids<C, TENSOR_V>(ids, facts, params, v_key + C.B_c);
}

#endif
