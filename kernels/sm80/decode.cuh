/*
 * The SM80_DECODE kernel computes attention of a few rows (queries x query heads of a group) over
 * many keys, bound by how fast K and V can be read. Each warp reads its own keys into its own ring
 * of stages in shared memory, and needs no other warp until its piece is done:
 *
 *     | ring of warp 0                        | ring of warp 1 | ...    dynamic shared memory
 *      \
 *       | K 0 | V 0 | K 1 | V 1 | ... |        slots of B_c keys; n_stages of two slots each
 *         stage 0     stage 1
 *
 * After the last step, each warp's rows of O and their weights lie over its ring (result.cuh). A
 * generated wrapper gives each configuration its name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void __launch_bounds__(decode_block_threads(&config))
 *     NAME(const __grid_constant__ sm80_decode_params_t params) {
 *         sm80_decode<config>(params);
 *     }
 *
 * Flash-Decoding: Dao, Haziza, Massa, Sizov, 2023 (pytorch.org/blog/flash-decoding).
 */
#ifndef FLASH_KERNELS_SM80_DECODE_CUH
#define FLASH_KERNELS_SM80_DECODE_CUH

#include "common/ptx/dependent_launch.cuh"
#include "sm80/decode/result.cuh"
#include "sm80/decode/sanitise_v.cuh"
#include "sm80/decode/shown_steps.cuh"

template <flash_config_t C> struct warp_state {
    output_tile<C> o;
    softmax_state<C> softmax;
};

template <flash_config_t C> struct step_operands {
    query_fragments<C> q;
    score_factors<C> factors;
    row_masks<C> masks;
    row_biases<C> biases;
    [[no_unique_address]] key_holes<C> holes;
    score_unit_t unit;
};

/* Returns the unit of the scores that the softmax sees. */
template <flash_config_t C>
static __device__ __forceinline__ score_unit_t softmax_unit(const flash_params_t &params,
                                                            const score_unit_t &unit) {
    if constexpr (has_bias<C>)
        return unit_after_bias(params.bias, unit);
    return unit;
}

template <flash_config_t C>
static __device__ __forceinline__ step_operands<C>
make_operands(const sm80_decode_params_t &params, const decode_block_t &block, int32_t head_kv,
              const row_biases<C> &biases, const score_unit_t &unit) {
    step_operands<C> operands;
    operands.q = load_queries<C>(params, block, head_kv);
    operands.masks = make_row_masks<C>(params, block);
    operands.biases = biases;
    operands.holes = find_key_holes<C>(params, block);
    operands.factors = prepare_queries<C>(operands.q, params, block, head_kv);
    operands.unit = unit;
    return operands;
}

/* Waits for the oldest slot that is being loaded. */
template <flash_config_t C> static __device__ __forceinline__ void await_slot() {
    async_copy_wait_all_but<2 * C.n_stages - 1>();
    __syncwarp();
}

/* Computes the keys of the next step, which lie in `slot` (K) and the next slot (V), and starts to
 * load later keys into both. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_step(warp_state<C> &state, step_walk<C> &walk, kv_stream_t &stream,
             const sm80_decode_params_t &params, const step_operands<C> &operands, uint32_t slot) {
    const int32_t step_key = key_to_compute<C>(walk);
    const bool whole = is_whole_step<C>(operands.masks, step_key);
    score_tile<C> s;
    await_slot<C>();
    multiply_q_k<C>(s, operands.q, slot);
    __syncwarp();
    load_k<C>(slot, stream);
    scale_scores<C>(s, operands.factors);
    cap_scores<C>(s, operands.unit);
    add_biases<C>(s, params.attention.bias, operands.biases, step_key, operands.unit.log2);
    const float log2_unit = softmax_unit<C>(params.attention, operands.unit).log2;
    if (!whole)
        mask_scores<C>(s, operands.masks, step_key);
    hide_holes<C>(s, operands.holes, params, step_key);
    update_max<C>(state.softmax, state.o, s, log2_unit);
    const weight_fragments<C> p = exponentiate<C>(s, state.softmax, log2_unit);
    await_slot<C>();
    if (!whole)
        sanitise_v<C>(state.o, slot + slot_bytes<C>, operands.masks, step_key);
    multiply_p_v<C>(state.o, p, slot + slot_bytes<C>);
    __syncwarp();
    load_v<C>(slot + slot_bytes<C>, stream, params);
    pass_computed<C>(walk, stream, params, operands.biases);
}

template <flash_config_t C>
static __device__ __forceinline__ void
fill_ring(uint32_t ring, step_walk<C> &walk, kv_stream_t &stream,
          const sm80_decode_params_t &params, const row_biases<C> &biases) {
#pragma unroll 1
    for (int stage = 0; stage < C.n_stages; ++stage) {
        load_k<C>(ring + 2 * stage * slot_bytes<C>, stream);
        load_v<C>(ring + (2 * stage + 1) * slot_bytes<C>, stream, params);
        pass_loaded<C>(walk, stream, params, biases);
    }
}

/* Computes the warp's steps over the keys of the block. The sinks are staged while the first keys
 * are on their way. */
template <flash_config_t C>
static __device__ __forceinline__ void
process_keys(const sm80_decode_params_t &params, const decode_block_t &block, warp_state<C> &state,
             uint32_t ring, row_sinks<C> &sinks, const score_unit_t &unit) {
    const warp_part_t part = find_warp_part<C>(params);
    const int32_t head_kv = block.first_head_kv + part.head;
    const row_biases<C> biases = make_row_biases<C>(params, block, head_kv);
    kv_stream_t stream = make_kv_stream<C>(params, block, part);
    step_walk<C> walk = begin_walk<C>(stream, params, block, part, biases);
    fill_ring<C>(ring, walk, stream, params, biases);
    const step_operands<C> operands = make_operands<C>(params, block, head_kv, biases, unit);
    stage_sinks<C>(params, block, sinks);
    int stage = 0;
#pragma unroll 1
    while (key_to_compute<C>(walk) < block.key_end) {
        process_step<C>(state, walk, stream, params, operands, ring + 2 * stage * slot_bytes<C>);
        stage = stage + 1 == C.n_stages ? 0 : stage + 1;
    }
    __syncwarp();
}

template <flash_config_t C>
static __device__ __forceinline__ void sm80_decode(const sm80_decode_params_t &params) {
    assert_legal<C>();
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ cut_scratch<C> scratch;
    __shared__ row_sinks<C> sinks;
    decode_block_t block;
    launch_dependents();
    if (!find_block<C>(params, scratch, block))
        return;
    const score_unit_t unit = score_unit_of<true>(params.attention);
    warp_state<C> state = {{}, empty_softmax<C>()};
    const int warp = threadIdx.x / DECODE_WARP_THREADS;
    process_keys<C>(params, block, state, shared_address(shared) + warp * warp_ring_bytes<C>, sinks,
                    unit);
    stage_results<C>(shared, state.o, state.softmax);
    __syncthreads();
    finish_block<C>(params, block, shared, sinks, softmax_unit<C>(params.attention, unit));
}

#endif
