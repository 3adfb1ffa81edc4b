/*
 * The SM90 kernel that computes dQ. A tile is 128 queries of a head, 64 for each of two consumers,
 * whose Q and dO stay in shared memory. Blocks of keys pass by, from the last to the first:
 *
 *     S = Q K^T,  P = exp(S - log_sum),  dP = dO V^T,  dS = P (dP - D),  dQ += dS K
 *
 * A consumer's products and what runs beside them, for block j:
 *
 *     tensor cores   | dP j     |      | S j+1 | dQ j | dP j+1 ...
 *     other units    | P j      | dS j |              | P j+1
 *
 * With overlap, dP of the next block is issued together with S of it and dQ, and P is computed
 * beside both.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_DQ_CUH
#define FLASH_KERNELS_SM90_BACKWARD_DQ_CUH

#include "common/ptx/math.cuh"
#include "sm90/backward/load.cuh"
#include "sm90/backward/products.cuh"
#include "sm90/backward/store.cuh"

/* This is what a consumer carries from block to block. */
template <flash_config_t C> struct dq_consumer {
    float s[C.B_c / 2];
    float dp[C.B_c / 2];
    float dq[C.d_head / 2];
    ring_t ring;
    int number;
    float log_sum[2]; /* base 2, of the thread's two rows */
    float d[2];
    int visible[2]; /* keys that they see */
    int read_stage; /* which dQ under way reads; -1: none */
};

template <flash_config_t C>
static __device__ __forceinline__ void issue_s(dq_consumer<C> &consumer, int stage) {
    issue_of_rows<operand_dtype<C>, C.B_c, C.d_head, still_panel<C>>(
        consumer.s, still_tile<C>() + consumer.number * SM90_WARPGROUP_ROWS * SM90_PANEL_BYTES,
        moving_tile<C>(stage));
}

template <flash_config_t C>
static __device__ __forceinline__ void issue_dp(dq_consumer<C> &consumer, int stage) {
    issue_of_rows<operand_dtype<C>, C.B_c, d_head_v<C>, still_panel<C>>(
        consumer.dp, still_v_tile<C>() + consumer.number * SM90_WARPGROUP_ROWS * SM90_PANEL_BYTES,
        moving_v_tile<C>(stage));
}

/* Computes P. */
template <flash_config_t C>
static __device__ __forceinline__ void weigh(float (&p)[C.B_c / 2], const dq_consumer<C> &consumer,
                                             float scale_log2) {
#pragma unroll
    for (int i = 0; i < C.B_c / 2; ++i)
        p[i] = exp2_approx(fmaf(consumer.s[i], scale_log2, -consumer.log_sum[i / 2 % 2]));
}

/* Makes P 0 of keys that a row does not see. first: the thread's first key. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_weights(float (&p)[C.B_c / 2],
                                                    const dq_consumer<C> &consumer, int first) {
    const int end[2] = {consumer.visible[0] - first, consumer.visible[1] - first};
#pragma unroll
    for (int i = 0; i < C.B_c / 2; ++i)
        p[i] = i / 4 * 8 + i % 2 < end[i / 2 % 2] ? p[i] : 0.0f;
}

/* Computes the fragments of dS. */
template <flash_config_t C>
static __device__ __forceinline__ void differentiate(uint32_t (&ds)[C.B_c / 16][4],
                                                     const float (&p)[C.B_c / 2],
                                                     const dq_consumer<C> &consumer) {
#pragma unroll
    for (int i = 0; i < C.B_c / 4; ++i)
        ds[i / 4][i % 4] = convert_pair<operand_dtype<C>>(
            p[2 * i] * (consumer.dp[2 * i] - consumer.d[i % 2]),
            p[2 * i + 1] * (consumer.dp[2 * i + 1] - consumer.d[i % 2]));
}

/* Computes the block of this number, whose S is there and whose dP has been issued, and issues
 * those of the stage `next` unless it is the LAST. */
template <flash_config_t C, bool LAST>
static __device__ __forceinline__ void dq_step(dq_consumer<C> &consumer, const ring_t &next,
                                               float scale_log2, bool is_cut, int32_t block) {
    gradient_state_t &state = gradient_state<C>();
    const int stage = consumer.ring.stage;
    float p[C.B_c / 2];
    uint32_t ds[C.B_c / 16][4];
    weigh<C>(p, consumer, scale_log2);
    if (is_cut)
        hide_weights<C>(p, consumer, block * C.B_c + tile_column());
    if constexpr (C.overlap) {
        wgmma_wait<1>();
        pin_accumulators(consumer.dq);
        release_if(consumer.read_stage >= 0, state.empty[max(consumer.read_stage, 0)]);
        consumer.read_stage = stage;
    }
    wgmma_wait<0>();
    pin_accumulators(consumer.dp);
    release(state.v_empty[stage]);
    differentiate<C>(ds, p, consumer);
    if constexpr (!LAST) {
        wait_full(state.full[next.stage], next.parity);
        issue_s<C>(consumer, next.stage);
    }
    issue_of_fragments<operand_dtype<C>, C.B_c, C.d_head>(consumer.dq, ds, moving_tile<C>(stage));
    if constexpr (!LAST)
        wait_full(state.v_full[next.stage], next.parity);
    if constexpr (C.overlap && !LAST) {
        issue_dp<C>(consumer, next.stage);
        wgmma_wait<2>();
        pin_accumulators(consumer.s);
    } else {
        wgmma_wait<0>();
        pin_accumulators(consumer.dq);
        release(state.empty[stage]);
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
    issue_s<C>(consumer, ring.stage);
    wait_full(state.v_full[ring.stage], ring.parity);
    wait_full(state.still_v_full, 0);
    issue_dp<C>(consumer, ring.stage);
    wgmma_wait<1>();
    pin_accumulators(consumer.s);
}

/* Computes the blocks from the last to the first. Those from whole_end on are cut. */
template <flash_config_t C>
static __device__ __forceinline__ void dq_tile(dq_consumer<C> &consumer,
                                               const gradient_steps_t &steps, float scale_log2) {
    start_dq<C>(consumer);
    int32_t block = steps.end - 1;
#pragma unroll 1
    for (; block > 0; --block) {
        ring_t next = consumer.ring;
        step<C.n_stages>(next);
        dq_step<C, false>(consumer, next, scale_log2, block >= steps.whole_end, block);
    }
    ring_t next = consumer.ring;
    step<C.n_stages>(next);
    dq_step<C, true>(consumer, next, scale_log2, block >= steps.whole_end, block);
}

/* Loads the numbers of the thread's rows. */
template <flash_config_t C>
static __device__ __forceinline__ void load_own_numbers(dq_consumer<C> &consumer,
                                                        const sm90_backward_params_t &params,
                                                        const gradient_tile_t &tile) {
    const flash_sequence_t &s = tile.sequence;
    const flash_gradients_t &g = params.gradients;
    const int32_t shift = s.len_k - s.len_q;
    const int64_t at =
        flash_row_index(&params.problem, &g, &s, tile.batch_index, tile.head, tile.begin);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = tile_row(half);
        const bool exists = tile.begin + row < s.len_q;
        consumer.log_sum[half] = global_load_if(exists, g.row_log_sum + at + row, INFINITY);
        consumer.d[half] = global_load_if(exists, g.row_d + at + row, 0.0f);
        consumer.visible[half] =
            tile.is_causal ? min(tile.begin + row + shift + 1, s.len_k) : s.len_k;
    }
}

/* Makes dQ of rows that see no key 0, whatever their Q and dO are. */
template <flash_config_t C>
static __device__ __forceinline__ void clear_blind_rows(dq_consumer<C> &consumer) {
#pragma unroll
    for (int i = 0; i < C.d_head / 2; ++i)
        consumer.dq[i] = consumer.log_sum[i / 2 % 2] == INFINITY ? 0.0f : consumer.dq[i];
}

template <flash_config_t C>
static __device__ __forceinline__ void store_dq(const sm90_backward_params_t &params,
                                                const gradient_tile_t &tile,
                                                const dq_consumer<C> &consumer) {
    const flash_params_t &p = params.problem;
    store_gradient<operand_dtype<C>, C.d_head>(
        params.gradients.dq, tile.batch_index, tile.head, tile.sequence.q_begin,
        tile.begin + tile_row(0), tile.sequence.len_q, p.d_head, consumer.dq, p.softmax_scale);
}

template <flash_config_t C>
static __device__ __forceinline__ void consume_dq(const sm90_backward_params_t &params) {
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    if (!has_rows<C>(tile))
        return;
    dq_consumer<C> consumer;
    consumer.ring = ring_t{0, 0};
    consumer.number = consumer_number();
    consumer.read_stage = -1;
    const gradient_steps_t all = find_steps<C>(tile, 0, C.B_r);
    const gradient_steps_t own =
        find_steps<C>(tile, consumer.number * SM90_WARPGROUP_ROWS, SM90_WARPGROUP_ROWS);
    load_own_numbers<C>(consumer, params, tile);
    clear(consumer.dq);
    skip_stages<C>(consumer.ring, all.end - own.end);
    if (own.end > 0)
        dq_tile<C>(consumer, own, params.problem.softmax_scale * log2_of_e);
    clear_blind_rows<C>(consumer);
    store_dq<C>(params, tile, consumer);
}

#endif
