/*
 * The SM90 kernel that computes dK and dV. A tile is 128 keys of a K/V head, 64 for each of two
 * consumers, whose K and V stay in shared memory. Blocks of queries of each head of the group pass
 * by. Everything is transposed, so that the accumulators of P^T and dS^T are the fragments by which
 * dV and dK are multiplied, and the sums of the whole group stay in registers:
 *
 *     S^T = K Q^T,  P^T = exp(S^T - log_sum),  dV += P^T dO
 *     dP^T = V dO^T,  dS^T = P^T (dP^T - D),   dK += dS^T Q
 *
 * D is what the accumulators of dP^T begin with, from which the product is subtracted: what comes
 * of it is -dS^T and -dK.
 *
 * A consumer's products and what runs beside them, for block j:
 *
 *     tensor cores   | dP j     | dV j | S j+1 | dK j | dP j+1 ...
 *     other units    | P j      | dS j |              | P j+1
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_DKV_CUH
#define FLASH_KERNELS_SM90_BACKWARD_DKV_CUH

#include "common/ptx/math.cuh"
#include "sm90/backward/kept_ds.cuh"
#include "sm90/backward/load.cuh"
#include "sm90/backward/masks.cuh"
#include "sm90/backward/passes.cuh"
#include "sm90/backward/products.cuh"
#include "sm90/backward/sanitise.cuh"
#include "sm90/backward/softcap.cuh"
#include "sm90/backward/store.cuh"

/* This is what a consumer carries from block to block. */
template <flash_config_t C> struct dkv_consumer {
    float s[C.B_r / 2];
    float dp[C.B_r / 2];    /* D - dP^T */
    float dk[C.d_head / 2]; /* -dK / scale */
    float dv[d_head_v<C> / 2];
    ring_t ring;
    int number;
    ds_place_t ds;
};

/* Loads the thread's pair of numbers of group i of eight rows, of those of a stage. */
static __device__ __forceinline__ float2 load_numbers(const float *numbers, int i) {
    return shared_load_pair(shared_address(numbers + tile_column()) + i * 8 * sizeof(float));
}

template <flash_config_t C>
static __device__ __forceinline__ void issue_s(dkv_consumer<C> &consumer, int stage) {
    issue_of_rows<operand_dtype<C>, C.B_r, C.d_head, still_panel<C>>(
        consumer.s, still_tile<C>() + own_rows(consumer.number), moving_tile<C>(stage));
}

/* Makes D of a stage's rows what accumulators begin with from which dP^T is subtracted. */
template <flash_config_t C>
static __device__ __forceinline__ void load_d(float (&dp)[C.B_r / 2], int stage) {
#pragma unroll
    for (int i = 0; i < C.B_r / 8; ++i) {
        const float2 d = load_numbers(gradient_state<C>().d[stage], i);
        dp[4 * i] = dp[4 * i + 2] = d.x;
        dp[4 * i + 1] = dp[4 * i + 3] = d.y;
    }
}

/* Says whether registers are left: D is loaded beside the products of the block before, and
 * fragments of P^T are made beside exponentials, for which blocks that a mask cuts have
 * instructions of their own. */
template <flash_config_t C> constexpr bool has_free_registers = C.d_head <= 64 && !has_softcap<C>;

/* Issues D - dP^T, of accumulators that D has been loaded into. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_dp(dkv_consumer<C> &consumer, int stage) {
    issue_of_rows<operand_dtype<C>, C.B_r, d_head_v<C>, still_panel<C>, true>(
        consumer.dp, still_v_tile<C>() + own_rows(consumer.number), moving_v_tile<C>(stage));
}

/* This is what a mask does to a block. */
typedef struct block_mask {
    bool is_cut;
    seen_t seen;
    int32_t first; /* column, without the thread's */
} block_mask_t;

/* Computes P^T. S^T becomes the tanh of a softcap. */
template <flash_config_t C>
static __device__ __forceinline__ void weigh(float (&p)[C.B_r / 2], float (&s)[C.B_r / 2],
                                             int stage, const score_unit_t &unit) {
    if constexpr (has_softcap<C>)
        cap(s, unit);
#pragma unroll
    for (int i = 0; i < C.B_r / 8; ++i) {
        const float2 sum = load_numbers(gradient_state<C>().log_sum[stage], i);
        p[4 * i] = exp2_approx(fmaf(s[4 * i], unit.log2, -sum.x));
        p[4 * i + 1] = exp2_approx(fmaf(s[4 * i + 1], unit.log2, -sum.y));
        p[4 * i + 2] = exp2_approx(fmaf(s[4 * i + 2], unit.log2, -sum.x));
        p[4 * i + 3] = exp2_approx(fmaf(s[4 * i + 3], unit.log2, -sum.y));
    }
}

/* Computes P^T and its fragments, of a block that a mask CUTS or may cut, or of another. */
template <flash_config_t C, bool CUTS = true>
static __device__ __forceinline__ void
weigh_and_round(uint32_t (&fragments)[C.B_r / 16][4], float (&p)[C.B_r / 2], float (&s)[C.B_r / 2],
                int stage, const score_unit_t &unit, const block_mask_t &mask) {
    weigh<C>(p, s, stage, unit);
    if (CUTS && has_mask<C> && mask.is_cut)
        hide<C>(p, mask.seen, mask.first + tile_column());
    round_fragments<operand_dtype<C>, C.B_r>(fragments, p);
}

/* Computes the fragments of P^T, and P^T times the derivative of a softcap in `p`: sixteen queries
 * at a time, whose S^T is needed no more, since there are no registers for all three. */
template <flash_config_t C>
static __device__ __forceinline__ void
weigh_capped(uint32_t (&fragments)[C.B_r / 16][4], float (&p)[C.B_r / 2], float (&s)[C.B_r / 2],
             int stage, const score_unit_t &unit, const block_mask_t &mask) {
    cap(s, unit);
#pragma unroll
    for (int i = 0; i < C.B_r / 16; ++i) {
        float of_step[8];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float2 sum = load_numbers(gradient_state<C>().log_sum[stage], 2 * i + j);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                of_step[4 * j + e] = exp2_approx(
                    fmaf(s[8 * i + 4 * j + e], unit.log2, -(e % 2 == 0 ? sum.x : sum.y)));
        }
        if (has_mask<C> && mask.is_cut)
            hide<C>(of_step, mask.seen, mask.first + 16 * i + tile_column());
#pragma unroll
        for (int j = 0; j < 4; ++j)
            fragments[i][j] = convert_pair<operand_dtype<C>>(of_step[2 * j], of_step[2 * j + 1]);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            p[8 * i + j] = times_derivative(of_step[j], s[8 * i + j], unit);
    }
}

/* Computes the fragments of -dS^T of P^T and D - dP^T. */
template <flash_config_t C>
static __device__ __forceinline__ void differentiate(uint32_t (&ds)[C.B_r / 16][4],
                                                     const float (&p)[C.B_r / 2],
                                                     const float (&dp)[C.B_r / 2]) {
#pragma unroll
    for (int i = 0; i < C.B_r / 4; ++i)
        ds[i / 4][i % 4] =
            convert_pair<operand_dtype<C>>(p[2 * i] * dp[2 * i], p[2 * i + 1] * dp[2 * i + 1]);
}

/* Sanitises the block in a stage, whose S^T and dP^T have been issued. */
template <flash_config_t C>
static __device__ __forceinline__ void sanitise_queries(dkv_consumer<C> &consumer, int stage,
                                                        const block_mask_t &mask) {
    wgmma_wait<0>();
    pin_accumulators(consumer.dp);
    sanitise<C, d_head_v<C>, false>(consumer.dv, moving_v_tile<C>(stage), team_of_all<C>(),
                                    mask.seen, mask.first);
    sanitise<C, C.d_head, true>(consumer.dk, moving_tile<C>(stage), team_of_all<C>(), mask.seen,
                                mask.first);
}

/* Computes a block, whose S^T and dP^T have been issued, and issues those of the stage `next`
 * unless it is the LAST. */
template <flash_config_t C, pass_t PASS, bool LAST>
static __device__ __forceinline__ void
dkv_step(dkv_consumer<C> &consumer, const sm90_backward_params_t &params, const ring_t &next,
         const score_unit_t &unit, const block_mask_t &mask) {
    gradient_state_t &state = gradient_state<C>();
    const int stage = consumer.ring.stage;
    float p[C.B_r / 2];
    uint32_t p_fragments[C.B_r / 16][4], ds_fragments[C.B_r / 16][4];
    if (PASS == SECOND_PASS && mask.is_cut)
        sanitise_queries<C>(consumer, stage, mask);
    if constexpr (has_softcap<C>)
        weigh_capped<C>(p_fragments, p, consumer.s, stage, unit, mask);
    else if constexpr (!has_free_registers<C>)
        weigh_and_round<C>(p_fragments, p, consumer.s, stage, unit, mask);
    else if (has_mask<C> && mask.is_cut)
        weigh_and_round<C>(p_fragments, p, consumer.s, stage, unit, mask);
    else
        weigh_and_round<C, false>(p_fragments, p, consumer.s, stage, unit, mask);
    wgmma_wait<0>();
    pin_accumulators(consumer.dp);
    if (PASS == SECOND_PASS && mask.is_cut) {
        hide<C>(consumer.dp, mask.seen, mask.first + tile_column());
        if constexpr (has_softcap<C>)
            hide<C>(p, mask.seen, mask.first + tile_column());
    }
    issue_of_fragments<operand_dtype<C>, C.B_r, d_head_v<C>>(consumer.dv, p_fragments,
                                                             moving_v_tile<C>(stage));
    differentiate<C>(ds_fragments, p, consumer.dp);
    if constexpr (!LAST) {
        wait_full(state.full[next.stage], next.parity);
        issue_s<C>(consumer, next.stage);
    }
    issue_of_fragments<operand_dtype<C>, C.B_r, C.d_head>(consumer.dk, ds_fragments,
                                                          moving_tile<C>(stage));
    if constexpr (keeps_ds<C>)
        keep_ds<C>(params, consumer.ds, consumer.number, mask.first, ds_fragments);
    wgmma_wait<LAST ? 1 : 2>();
    pin_accumulators(consumer.dv);
    release(state.v_empty[stage]);
    if constexpr (!LAST && has_free_registers<C>)
        load_d<C>(consumer.dp, next.stage);
    if constexpr (!LAST)
        wait_full(state.v_full[next.stage], next.parity);
    wgmma_wait<0>();
    pin_accumulators(consumer.dk);
    give_back<C>(state.empty[stage]);
    if constexpr (!LAST) {
        pin_accumulators(consumer.s);
        if constexpr (!has_free_registers<C>)
            load_d<C>(consumer.dp, next.stage);
        issue_dp<C>(consumer, next.stage);
    }
    consumer.ring = next;
}

/* This is how a consumer walks over the blocks of each head: it leaves out the first `skipped` of
 * those that pass by. In the second pass it leaves out none, nor has it the registers for that
 * where there are windows. */
typedef struct dkv_walk {
    int32_t skipped;
    gradient_steps_t steps;
    seen_t seen;
} dkv_walk_t;

/* Finds it for a consumer's rows from number `first` of the tile on, of which the thread has the
 * one of number `row`. */
template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ dkv_walk_t find_dkv_walk(const flash_params_t &p,
                                                           const gradient_tile_t &tile, int first,
                                                           int row) {
    const gradient_steps_t all = find_steps<C>(p, tile, 0, still_rows<C>);
    dkv_walk_t walk;
    walk.steps = PASS == SECOND_PASS ? all : find_steps<C>(p, tile, first, SM90_WARPGROUP_ROWS);
    walk.steps.begin = has_window<C> ? all.begin : min(walk.steps.begin, all.end);
    walk.steps.end = all.end;
    walk.skipped = has_window<C> ? 0 : walk.steps.begin - min(all.begin, all.end);
    walk.seen = find_seen<C>(p, tile, row);
    return walk;
}

static __device__ __forceinline__ int32_t count_blocks(const dkv_walk_t &walk) {
    return walk.steps.end - walk.steps.begin;
}

/* Returns the block after one: behind the last of a head comes the first. */
static __device__ __forceinline__ int32_t next_block(const dkv_walk_t &walk, int32_t block) {
    return block + 1 == walk.steps.end ? walk.steps.begin : block + 1;
}

template <flash_config_t C>
static __device__ __forceinline__ block_mask_t mask_of_block(const dkv_walk_t &walk,
                                                             int32_t block) {
    return block_mask_t{is_cut<C>(walk.steps, block), walk.seen, block * C.B_r};
}

template <flash_config_t C>
static __device__ __forceinline__ void start_dkv(dkv_consumer<C> &consumer,
                                                 const dkv_walk_t &walk) {
    gradient_state_t &state = gradient_state<C>();
    skip_stages<C>(consumer.ring, walk.skipped);
    const ring_t &ring = consumer.ring;
    wait_full(state.full[ring.stage], ring.parity);
    wait_full(state.still_full, 0);
    issue_s<C>(consumer, ring.stage);
    wait_full(state.v_full[ring.stage], ring.parity);
    wait_full(state.still_v_full, 0);
    wgmma_wait<0>();
    pin_accumulators(consumer.s);
    load_d<C>(consumer.dp, ring.stage);
    issue_dp<C>(consumer, ring.stage);
}

/* Computes the consumer's part of a tile. Behind the last block of a head come those that the
 * consumer skips of the next one. */
template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ void dkv_tile(dkv_consumer<C> &consumer,
                                                const sm90_backward_params_t &params,
                                                const dkv_walk_t &walk, const score_unit_t &unit) {
    start_dkv<C>(consumer, walk);
    const int32_t heads = params.problem.group;
    int32_t block = walk.steps.begin;
#pragma unroll 1
    for (int32_t i = heads * count_blocks(walk); i > 1; --i) {
        ring_t next = consumer.ring;
        step<C.n_stages>(next);
        if (has_mask<C> && !has_window<C> && block + 1 == walk.steps.end)
            skip_stages<C>(next, walk.skipped);
        dkv_step<C, PASS, false>(consumer, params, next, unit, mask_of_block<C>(walk, block));
        if (keeps_ds<C> && block + 1 == walk.steps.end)
            consumer.ds.first += (uint32_t)params.gradients.ds.head_tiles;
        block = next_block(walk, block);
    }
    ring_t next = consumer.ring;
    step<C.n_stages>(next);
    dkv_step<C, PASS, true>(consumer, params, next, unit, mask_of_block<C>(walk, block));
}

template <flash_config_t C>
static __device__ __forceinline__ void store_dkv(const sm90_backward_params_t &params,
                                                 const dkv_consumer<C> &consumer) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    const flash_gradients_t &g = params.gradients;
    const int32_t row = tile.begin + tile_row(0);
    const int64_t token = tile.sequence.k_begin;
    store_gradient<operand_dtype<C>, C.d_head>(g.dk, tile.batch_index, tile.head, token, row,
                                               tile.sequence.len_k, p.d_head, consumer.dk,
                                               -p.softmax_scale);
    store_gradient<operand_dtype<C>, d_head_v<C>>(g.dv, tile.batch_index, tile.head, token, row,
                                                  tile.sequence.len_k, p.d_head_v, consumer.dv,
                                                  1.0f);
}

template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ void dkv_pass(dkv_consumer<C> &consumer,
                                                const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    const dkv_walk_t walk =
        find_dkv_walk<C, PASS>(p, tile, consumer.number * SM90_WARPGROUP_ROWS, tile_row(0));
    clear(consumer.dk);
    clear(consumer.dv);
    if constexpr (keeps_ds<C>) {
        consumer.ds =
            find_ds_place<C>(params, tile, consumer.number * SM90_WARPGROUP_ROWS, tile_row(0));
        keep_zeros<C>(params, consumer.ds, consumer.number,
                      queries_before_passing<C>(p) + walk.steps.begin * C.B_r);
    }
    if (count_blocks(walk) > 0)
        dkv_tile<C, PASS>(consumer, params, walk, score_unit_of<has_softcap<C>>(p));
    else
        skip_stages<C>(consumer.ring, p.group * walk.skipped);
}

template <flash_config_t C>
static __device__ __forceinline__ void consume_dkv(const sm90_backward_params_t &params) {
    if (!has_rows<C>(find_gradient_tile<C>(params)))
        return;
    dkv_consumer<C> consumer;
    consumer.ring = ring_t{0, 0};
    consumer.number = consumer_number();
    run_passes<C>(
        params.problem, [&] { dkv_pass<C, FIRST_PASS>(consumer, params); },
        [&] { dkv_pass<C, SECOND_PASS>(consumer, params); },
        [&] { return are_finite(consumer.dk) && are_finite(consumer.dv); },
        [&] { store_dkv<C>(params, consumer); });
}

#endif
