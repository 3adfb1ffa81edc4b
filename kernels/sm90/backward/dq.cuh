/*
 * The SM90 kernel that computes dQ. A tile is 128 queries of a head, 64 for each of two consumers,
 * whose Q and dO stay in shared memory. Blocks of keys pass by, from the last to the first:
 *
 *     S = Q K^T,  P = exp(S - log_sum),  dP = dO V^T,  dS = P (dP - D),  dQ += dS K
 *
 * D is what the accumulators of dP begin with, from which the product is subtracted, as in kernels
 * of dK and dV (dkv.cuh). Sixteen keys at a time are added to dQ, the last ones first, as where it
 * is computed of kept dS (dq_of_ds.cuh). So rows of other steps have the same bits, and so has
 * that.
 *
 * A consumer's products and what runs beside them, for block j:
 *
 *     tensor cores   | dP j     | S j+1 | dQ j | dP j+1 ...
 *     other units    | P j      | dS j  |      | P j+1
 *
 * With overlap, dP of the next block is issued together with dQ, and P is computed beside both.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_DQ_CUH
#define FLASH_KERNELS_SM90_BACKWARD_DQ_CUH

#include "common/ptx/math.cuh"
#include "sm90/backward/load.cuh"
#include "sm90/backward/masks.cuh"
#include "sm90/backward/passes.cuh"
#include "sm90/backward/products.cuh"
#include "sm90/backward/sanitise.cuh"
#include "sm90/backward/softcap.cuh"
#include "sm90/backward/store.cuh"

/* This is what a consumer carries from block to block. */
template <flash_config_t C> struct dq_consumer {
    uint32_t q[C.d_head / 16][4]; /* fragments, where they wait in registers, and of dO */
    uint32_t d_o[d_head_v<C> / 16][4];
    float s[C.B_c / 2];
    float dp[C.B_c / 2];    /* D - dP */
    float dq[C.d_head / 2]; /* -dQ / scale */
    ring_t ring;
    int number;
    float log_sum[2]; /* base 2, of the thread's two rows */
    float d[2];
    seen_t seen;
    int read_stage; /* which dQ under way reads; -1: none */
};

template <flash_config_t C>
static __device__ __forceinline__ void issue_s(dq_consumer<C> &consumer, int stage) {
    if constexpr (has_still_fragments<C>)
        issue_of_row_fragments<operand_dtype<C>, C.B_c, C.d_head>(consumer.s, consumer.q,
                                                                  moving_tile<C>(stage));
    else
        issue_of_rows<operand_dtype<C>, C.B_c, C.d_head, still_panel<C>>(
            consumer.s, still_tile<C>() + own_rows(consumer.number), moving_tile<C>(stage));
}

/* Issues D - dP. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_dp(dq_consumer<C> &consumer, int stage) {
#pragma unroll
    for (int i = 0; i < C.B_c / 2; ++i)
        consumer.dp[i] = consumer.d[i / 2 % 2];
    if constexpr (has_still_fragments<C>)
        issue_of_row_fragments<operand_dtype<C>, C.B_c, d_head_v<C>, true>(
            consumer.dp, consumer.d_o, moving_v_tile<C>(stage));
    else
        issue_of_rows<operand_dtype<C>, C.B_c, d_head_v<C>, still_panel<C>, true>(
            consumer.dp, still_v_tile<C>() + own_rows(consumer.number), moving_v_tile<C>(stage));
}

/* Computes P, times the derivative of a softcap. */
template <flash_config_t C>
static __device__ __forceinline__ void weigh(float (&p)[C.B_c / 2], dq_consumer<C> &consumer,
                                             const score_unit_t &unit) {
    if constexpr (has_softcap<C>)
        cap(consumer.s, unit);
#pragma unroll
    for (int i = 0; i < C.B_c / 2; ++i)
        p[i] = exp2_approx(fmaf(consumer.s[i], unit.log2, -consumer.log_sum[i / 2 % 2]));
    if constexpr (has_softcap<C>)
        multiply_by_derivative(p, consumer.s, unit);
}

/* Computes the fragments of -dS. */
template <flash_config_t C>
static __device__ __forceinline__ void differentiate(uint32_t (&ds)[C.B_c / 16][4],
                                                     const float (&p)[C.B_c / 2],
                                                     const dq_consumer<C> &consumer) {
#pragma unroll
    for (int i = 0; i < C.B_c / 4; ++i)
        ds[i / 4][i % 4] = convert_pair<operand_dtype<C>>(p[2 * i] * consumer.dp[2 * i],
                                                          p[2 * i + 1] * consumer.dp[2 * i + 1]);
}

/* Sanitises the block in a stage, whose S and dP have been issued. first: its first key. */
template <flash_config_t C>
static __device__ __forceinline__ void sanitise_keys(dq_consumer<C> &consumer, int stage,
                                                     int32_t first) {
    wgmma_wait<0>();
    pin_accumulators(consumer.dp);
    sanitise<C, C.d_head, true>(consumer.dq, moving_tile<C>(stage), team_of_all<C>(), consumer.seen,
                                first);
}

/* Computes the block of this number, whose S is there and whose dP has been issued, and issues
 * those of the stage `next` unless it is the LAST. */
template <flash_config_t C, pass_t PASS, bool LAST>
static __device__ __forceinline__ void dq_step(dq_consumer<C> &consumer, const ring_t &next,
                                               const score_unit_t &unit, bool is_cut,
                                               int32_t block) {
    gradient_state_t &state = gradient_state<C>();
    const int stage = consumer.ring.stage;
    float p[C.B_c / 2];
    uint32_t ds[C.B_c / 16][4];
    if (PASS == SECOND_PASS && is_cut)
        sanitise_keys<C>(consumer, stage, block * C.B_c);
    weigh<C>(p, consumer, unit);
    if (is_cut)
        hide<C>(p, consumer.seen, block * C.B_c + tile_column());
    wgmma_wait<0>();
    pin_accumulators(consumer.dq);
    pin_accumulators(consumer.dp);
    if constexpr (overlaps<C, PASS>) {
        give_back_if<C>(consumer.read_stage >= 0, state.empty[max(consumer.read_stage, 0)]);
        consumer.read_stage = stage;
    }
    if constexpr (!LAST) {
        wait_full(state.full[next.stage], next.parity);
        issue_s<C>(consumer, next.stage);
    }
    release(state.v_empty[stage]);
    if (PASS == SECOND_PASS && is_cut)
        hide<C>(consumer.dp, consumer.seen, block * C.B_c + tile_column());
    differentiate<C>(ds, p, consumer);
    issue_of_fragments<operand_dtype<C>, C.B_c, C.d_head, true>(consumer.dq, ds,
                                                                moving_tile<C>(stage));
    if constexpr (!LAST)
        wait_full(state.v_full[next.stage], next.parity);
    if constexpr (overlaps<C, PASS> && !LAST) {
        issue_dp<C>(consumer, next.stage);
        wgmma_wait<2>();
        pin_accumulators(consumer.s);
    } else {
        wgmma_wait<0>();
        pin_accumulators(consumer.dq);
        give_back<C>(state.empty[stage]);
        if constexpr (!LAST) {
            pin_accumulators(consumer.s);
            issue_dp<C>(consumer, next.stage);
        }
    }
    consumer.ring = next;
}

template <flash_config_t C>
static __device__ __forceinline__ void start_dq(dq_consumer<C> &consumer) {
    gradient_state_t &state = gradient_state<C>();
    const ring_t &ring = consumer.ring;
    wait_full(state.full[ring.stage], ring.parity);
    wait_full(state.still_full, 0);
    if constexpr (has_still_fragments<C>)
        load_fragments<C.d_head, still_panel<C>>(consumer.q,
                                                 still_tile<C>() + own_rows(consumer.number));
    issue_s<C>(consumer, ring.stage);
    wait_full(state.v_full[ring.stage], ring.parity);
    wait_full(state.still_v_full, 0);
    if constexpr (has_still_fragments<C>)
        load_fragments<d_head_v<C>, still_panel<C>>(consumer.d_o,
                                                    still_v_tile<C>() + own_rows(consumer.number));
    issue_dp<C>(consumer, ring.stage);
    wgmma_wait<1>();
    pin_accumulators(consumer.s);
}

/* Computes the blocks from the last to the first. */
template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ void
dq_tile(dq_consumer<C> &consumer, const gradient_steps_t &steps, const score_unit_t &unit) {
    start_dq<C>(consumer);
    const int32_t last = has_window<C> ? steps.begin : 0;
    int32_t block = steps.end - 1;
#pragma unroll 1
    for (; block > last; --block) {
        ring_t next = consumer.ring;
        step<C.n_stages>(next);
        dq_step<C, PASS, false>(consumer, next, unit, is_cut<C>(steps, block), block);
    }
    ring_t next = consumer.ring;
    step<C.n_stages>(next);
    dq_step<C, PASS, true>(consumer, next, unit, is_cut<C>(steps, block), block);
}

/* Makes dQ of rows that see no key 0, whatever their Q and dO are. */
template <flash_config_t C>
static __device__ __forceinline__ void clear_blind_rows(dq_consumer<C> &consumer) {
#pragma unroll
    for (int i = 0; i < C.d_head / 2; ++i)
        consumer.dq[i] = consumer.log_sum[i / 2 % 2] == INFINITY ? 0.0f : consumer.dq[i];
}

/* Loads the numbers of the thread's rows. */
template <flash_config_t C>
static __device__ __forceinline__ void load_own_numbers(dq_consumer<C> &consumer,
                                                        const sm90_backward_params_t &params,
                                                        const gradient_tile_t &tile) {
    const flash_sequence_t &s = tile.sequence;
    const flash_gradients_t &g = params.gradients;
    const int64_t at =
        flash_row_index(&params.problem, &g, &s, tile.batch_index, tile.head, tile.begin);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = tile_row(half);
        const bool exists = tile.begin + row < s.len_q;
        consumer.log_sum[half] = global_load_if(exists, g.row_log_sum + at + row, INFINITY);
        consumer.d[half] = global_load_if(exists, g.row_d + at + row, 0.0f);
    }
    consumer.seen = find_seen<C>(params.problem, tile, tile_row(0));
}

/* Computes the consumer's blocks of those that pass by; in the second pass it leaves out none. */
template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ void dq_pass(dq_consumer<C> &consumer,
                                               const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    load_own_numbers<C>(consumer, params, tile);
    const gradient_steps_t all = find_steps<C>(p, tile, 0, C.B_r);
    const int32_t first = consumer.number * SM90_WARPGROUP_ROWS;
    gradient_steps_t own =
        PASS == SECOND_PASS ? all : find_steps<C>(p, tile, first, SM90_WARPGROUP_ROWS);
    own.begin = max(min(own.begin, all.end), all.begin);
    own.end = max(min(own.end, all.end), own.begin);
    consumer.read_stage = -1;
    clear(consumer.dq);
    skip_stages<C>(consumer.ring, all.end - own.end);
    if (own.end > own.begin)
        dq_tile<C, PASS>(consumer, own, score_unit_of<has_softcap<C>>(p));
    if constexpr (has_window<C>)
        skip_stages<C>(consumer.ring, own.begin - all.begin);
    clear_blind_rows<C>(consumer);
}

template <flash_config_t C>
static __device__ __forceinline__ void store_dq(const sm90_backward_params_t &params,
                                                const dq_consumer<C> &consumer) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    store_gradient<operand_dtype<C>, C.d_head>(
        params.gradients.dq, tile.batch_index, tile.head, tile.sequence.q_begin,
        tile.begin + tile_row(0), tile.sequence.len_q, p.d_head, consumer.dq, -p.softmax_scale);
}

template <flash_config_t C>
static __device__ __forceinline__ void consume_dq(const sm90_backward_params_t &params) {
    if (!has_rows<C>(find_gradient_tile<C>(params)))
        return;
    dq_consumer<C> consumer;
    consumer.ring = ring_t{0, 0};
    consumer.number = consumer_number();
    run_passes<C>(
        params.problem, [&] { dq_pass<C, FIRST_PASS>(consumer, params); },
        [&] { dq_pass<C, SECOND_PASS>(consumer, params); }, [&] { return are_finite(consumer.dq); },
        [&] { store_dq<C>(params, consumer); });
}

#endif
