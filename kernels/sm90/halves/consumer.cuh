/*
 * Two consumers compute the same 64 rows. Consumer 0 has the scores and the softmax, and the first
 * half of the columns of O; consumer 1 has the other half, for which it takes P and the factors of
 * its rows from consumer 0.
 *
 *     consumer 0    S = Q K^T | softmax | hands P on | O += P V, first half
 *     consumer 1                                     | O += P V, second half
 *
 * Where V lies in K, a block is released before the next one's scores begin. To issue them before
 * PV, so that the tensor cores work beside the softmax, takes longer until a stage is free to be
 * loaded, and there is room for only two: measured on an H200, 5 to 20 % slower. Where V has a ring
 * of its own, K is released when its scores are complete, and V after PV: each is loaded beside the
 * other's product.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_CONSUMER_CUH
#define FLASH_KERNELS_SM90_HALVES_CONSUMER_CUH

#include "sm90/decode/consumer.cuh"
#include "sm90/halves/state.cuh"
#include "sm90/halves/tiles.cuh"
#include "sm90/softmax/holes.cuh"

/* Returns the first of the thread's two rows; both consumers map a thread to the same two rows. */
static __device__ __forceinline__ int32_t group_row() {
    return warp_row_of_group() + (int32_t)lane_index() / 4;
}

/* This is what both consumers carry from block to block. o: half of the columns of O. */
template <flash_config_t C> struct half_state {
    float o[half_registers<C>];
    probability_tile<C> p;
    rescale_t past;
    ring_t k;
    ring_t v;      /* unless V lies in K */
    uint32_t turn; /* parity of the block's number */
};

/* Consumer 0 has this in addition. */
template <flash_config_t C> struct scorer_state {
    score_tile<C> s;
    softmax_state_t softmax;
    float factors[2]; /* of scores of the thread's rows, where K is of e4m3 */
};

/* Starts when Q is in shared memory. has_keys: the tile has blocks of keys. Of one that has none no
 * warp waits for another of the consumer, which may store the factors of the next tile. */
template <flash_config_t C>
static __device__ __forceinline__ void start_scorer(scorer_state<C> &scorer, bool has_keys) {
    scorer.softmax = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int half = 0; half < 2; ++half)
        scorer.factors[half] =
            has_scales<C> && has_keys ? exchange<C>().score_factors[group_row() + 8 * half] : 1.0f;
}

template <flash_config_t C>
static __device__ __forceinline__ void apply_factors(scorer_state<C> &scorer) {
    if constexpr (has_scales<C>)
#pragma unroll
        for (int i = 0; i < score_registers<C>; ++i)
            scorer.s.s[i] *= scorer.factors[i / 2 % 2];
}

/* ---- Products ---- */

/* Issues S = Q K^T, part after part as they arrive. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_half_scores(score_tile<C> &s, const ring_t &ring) {
    const uint32_t q = uniform(descriptor_low(q_tile<C>(0), 0));
    const uint32_t k = uniform(descriptor_low(stage_tile<C, TENSOR_K>(ring.stage), 0));
    constexpr int parts = tensor_parts<C, TENSOR_K>, part_steps = head_steps<C> / parts;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
        await_part<C, TENSOR_K>(ring, part);
        wgmma_fence();
#pragma unroll
        for (int i = part * part_steps; i < (part + 1) * part_steps; ++i)
            wgmma<operand_dtype<C>, C.B_c>::shared_a(
                s.s, descriptor(q, head_step_offset(i, q_panel_bytes<C>)),
                descriptor(k, head_step_offset(i, kv_panel_bytes<C>)), i > 0);
    }
    wgmma_commit();
}

/* Releases the stage of K when its scores are complete, unless V lies in it. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_scores(half_state<C> &half) {
    if constexpr (!v_in_k<C>) {
        release(halves_state<C>().of[TENSOR_K].empty[half.k.stage]);
        step<C.n_stages>(half.k);
    }
}

/* Returns the ring of the blocks of V. */
template <flash_config_t C>
static __device__ __forceinline__ ring_t &values_ring(half_state<C> &half) {
    if constexpr (v_in_k<C>)
        return half.k;
    else
        return half.v;
}

template <flash_config_t C>
static __device__ __forceinline__ uint32_t values_tile(half_state<C> &half) {
    return stage_tile<C, TENSOR_V>(values_ring<C>(half).stage);
}

/* Waits until the half of V, or all of it, that a consumer is to read is there. */
template <flash_config_t C, bool CUT>
static __device__ __forceinline__ void await_values(half_state<C> &half, int number) {
    if constexpr (v_in_k<C>)
        await_parts<C, TENSOR_K>(half.k);
    else if constexpr (CUT)
        await_parts<C, TENSOR_V>(half.v);
    else
        await_part<C, TENSOR_V>(half.v, number);
}

template <flash_config_t C> using product_accumulators = float[product_columns<C> / 2];

/* Returns the accumulators of the columns of a product. */
template <flash_config_t C>
static __device__ __forceinline__ product_accumulators<C> &
accumulators_of_product(half_state<C> &half, int product) {
    return *(product_accumulators<C> *)&half.o[product * (product_columns<C> / 2)];
}

/* Issues the consumer's half of O += P V. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_half_output(half_state<C> &half, int number) {
    constexpr int step_bytes_down = 16 * SM90_PANEL_BYTES; /* sixteen keys */
    constexpr int product_bytes = half_bytes<C> / half_products<C>;
    const uint32_t v =
        uniform(descriptor_low(values_tile<C>(half) + number * half_bytes<C>, kv_panel_bytes<C>));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
#pragma unroll
        for (int j = 0; j < half_products<C>; ++j)
            wgmma<operand_dtype<C>, product_columns<C>>::template register_a<1>(
                accumulators_of_product<C>(half, j), half.p.p[i],
                descriptor(v, i * step_bytes_down + j * product_bytes), true);
    wgmma_commit();
}

/* Releases the stage after PV, when it is complete. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_half_output(half_state<C> &half) {
    constexpr kv_tensor T = v_in_k<C> ? TENSOR_K : TENSOR_V;
    ring_t &ring = values_ring<C>(half);
    pin_accumulators(half.o);
    release(halves_state<C>().of[T].empty[ring.stage]);
    step<C.n_stages>(ring);
}

/* Rescales O, unless no row of the warp has a new maximum, as is mostly so after the first blocks.
 */
template <flash_config_t C>
static __device__ __forceinline__ void rescale_half(half_state<C> &half) {
    if (__all_sync(0xffffffffu, half.past.factor[0] == 1.0f && half.past.factor[1] == 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < half_registers<C>; i += 2)
        half.o[i] *= half.past.factor[i / 2 % 2], half.o[i + 1] *= half.past.factor[i / 2 % 2];
}

/* ---- The exchange ---- */

/* Hands P and its factors to consumer 1, when it has taken those of the block before. */
template <flash_config_t C> static __device__ __forceinline__ void hand_on(half_state<C> &half) {
    halves_exchange<C> &to = exchange<C>();
    halves_state_t &state = halves_state<C>();
    const int thread = threadIdx.x % SM90_WARPGROUP_THREADS;
    mbarrier_wait(shared_address(&state.p_taken), half.turn ^ 1);
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
        shared_store(shared_address(&to.p[i][thread]),
                     uint4{half.p.p[i][0], half.p.p[i][1], half.p.p[i][2], half.p.p[i][3]});
    shared_store(shared_address(&to.factors[thread]),
                 float2{half.past.factor[0], half.past.factor[1]});
    mbarrier_arrive(shared_address(&state.p_ready));
    half.turn ^= 1;
}

template <flash_config_t C> static __device__ __forceinline__ void take_over(half_state<C> &half) {
    const halves_exchange<C> &from = exchange<C>();
    halves_state_t &state = halves_state<C>();
    const int thread = threadIdx.x % SM90_WARPGROUP_THREADS;
    mbarrier_wait(shared_address(&state.p_ready), half.turn);
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i) {
        const uint4 p = shared_load(shared_address(&from.p[i][thread]));
        half.p.p[i][0] = p.x, half.p.p[i][1] = p.y, half.p.p[i][2] = p.z, half.p.p[i][3] = p.w;
    }
    const float2 factors = from.factors[thread];
    half.past = {{factors.x, factors.y}};
    mbarrier_arrive(shared_address(&state.p_taken));
    half.turn ^= 1;
}

/* ---- Blocks that are cut ---- */

/* Sanitises V of the next block, whose first key is given. */
template <flash_config_t C>
static __device__ __forceinline__ void sanitise_half(half_state<C> &half, int number,
                                                     const row_keys_t &keys, int32_t first_key) {
    meet_converter<C>();
    sanitise_v<C>(half.o, number * half_columns<C>, values_tile<C>(half), keys, first_key);
    if constexpr (!v_in_k<C>)
        meet_converter<C>();
}

/* ---- Consumer 0 ---- */

/* Computes P of the next block, whose first key is given. is_last: of the tile. WALKS: other tiles
 * follow, or may. */
template <flash_config_t C, bool CUT, bool WALKS>
static __device__ __forceinline__ void
compute_probabilities(scorer_state<C> &scorer, half_state<C> &half, const flash_bias_t &of_call,
                      const row_keys_t &keys, int32_t first_key, bool is_last,
                      const score_units<C> &unit, const tile_bias<C> &bias) {
    issue_half_scores<C>(scorer.s, half.k);
    wgmma_wait<0>();
    pin_accumulators(scorer.s.s);
    if constexpr (WALKS)
        release_queries_if<C>(is_last);
    const unhidden_columns<C> unhidden =
        take_holes<C>(of_call, halves_state<C>().k_holes[half.k.stage]);
    finish_scores<C>(half);
    apply_factors<C>(scorer);
    cap_scores<C, !CUT>(scorer.s, unit);
    add_tile_bias<C>(scorer.s, bias, first_key, unit);
    hide_holes<C>(scorer.s, of_call, unhidden);
    if constexpr (CUT)
        hide_keys<C>(scorer.s, keys, first_key);
    half.past = raise_tile_max<C>(scorer.softmax, scorer.s, bias, first_key, unit);
    exponentiate<C>(scorer.s, scorer.softmax, softmax_unit<C>(bias, unit));
    round_probabilities<C>(half.p, scorer.s);
}

/* Multiplies by a block whose P the consumer has. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_half(half_state<C> &half, int number) {
    issue_half_output<C>(half, number);
    wgmma_wait<0>();
    finish_half_output<C>(half);
}

/* Computes all blocks of the walk, as consumer 0. */
template <flash_config_t C, bool WALKS>
static __device__ __forceinline__ void
score_walk(scorer_state<C> &scorer, half_state<C> &half, const decode_params_t &params,
           const decode_block_t &block, const key_walk_t &walk, const score_units<C> &unit,
           const tile_bias<C> &bias) {
    const row_keys_t all = {};
#pragma unroll 1
    for (int32_t n = 0; n < whole_blocks(walk); ++n) {
        compute_probabilities<C, false, WALKS>(scorer, half, params.attention.bias, all,
                                               nth_key<C>(walk, n), n + 1 == walk.blocks, unit,
                                               bias);
        hand_on<C>(half);
        rescale_half<C>(half);
        if constexpr (!v_in_k<C>)
            await_values<C, false>(half, 0);
        multiply_half<C>(half, 0);
    }
    const row_keys_t keys = find_row_keys(params, block, walk, group_row());
#pragma unroll 1
    for (int32_t n = whole_blocks(walk); n < walk.blocks; ++n) {
        const int32_t first_key = nth_key<C>(walk, n);
        compute_probabilities<C, true, WALKS>(scorer, half, params.attention.bias, keys, first_key,
                                              n + 1 == walk.blocks, unit, bias);
        hand_on<C>(half);
        rescale_half<C>(half);
        if constexpr (!v_in_k<C>)
            await_values<C, true>(half, 0);
        sanitise_half<C>(half, 0, keys, first_key);
        multiply_half<C>(half, 0);
    }
}

/* ---- Consumer 1 ---- */

/* Computes all blocks of the walk, as consumer 1. */
template <flash_config_t C>
static __device__ __forceinline__ void
follow_walk(half_state<C> &half, const decode_params_t &params, const decode_block_t &block,
            const key_walk_t &walk) {
#pragma unroll 1
    for (int32_t n = 0; n < whole_blocks(walk); ++n) {
        take_over<C>(half);
        await_values<C, false>(half, 1);
        rescale_half<C>(half);
        multiply_half<C>(half, 1);
    }
    const row_keys_t keys = find_row_keys(params, block, walk, group_row());
#pragma unroll 1
    for (int32_t n = whole_blocks(walk); n < walk.blocks; ++n) {
        take_over<C>(half);
        await_values<C, true>(half, 1);
        rescale_half<C>(half);
        sanitise_half<C>(half, 1, keys, nth_key<C>(walk, n));
        multiply_half<C>(half, 1);
    }
}

#endif
