/*
 * The SM90 kernel that computes dK and dV where d_head is so large that a consumer has registers
 * for one of them only. A tile is 64 keys of a K/V head, and each consumer has a role:
 *
 *     consumer 0   S^T = K Q^T,  P^T = exp(S^T - log_sum),  dV += P^T dO
 *     consumer 1   dP^T = V dO^T,  dS^T = P^T (dP^T - D),  dK += dS^T Q
 *
 * P^T goes from one to the other in fp32 through a slot in shared memory, from each thread to the
 * one that has the same rows and columns. Consumer 1 runs behind by itself, so that one's
 * exponentials are beside the other's products. dkv.cuh has what both kernels share.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_DKV_ROLES_CUH
#define FLASH_KERNELS_SM90_BACKWARD_DKV_ROLES_CUH

#include "sm90/backward/dkv.cuh"

/* This is what either consumer carries from block to block: s is S^T or D - dP^T, sum dV or
 * -dK. */
template <flash_config_t C, int COLUMNS> struct role_consumer {
    uint32_t still[(C.d_head + d_head_v<C> - COLUMNS) / 16][4]; /* fragments of K or V */
    float s[C.B_r / 2];
    float sum[COLUMNS / 2];
    uint32_t fragments[C.B_r / 16][4];
    int used; /* stage that a product under way reads; -1: none */
};

/* This is where either consumer is. */
typedef struct role_place {
    ring_t ring;
    uint32_t p_parity; /* of P */
} role_place_t;

/* Returns where the thread has P of the first eight queries; others are p_apart bytes apart. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t own_p() {
    return p_slot<C>() + threadIdx.x % SM90_WARPGROUP_THREADS * (uint32_t)sizeof(uint4);
}
constexpr uint32_t p_apart = SM90_WARPGROUP_THREADS * sizeof(uint4);

/* Hands over P^T, times the derivative of a softcap, whose tanh is t. */
template <flash_config_t C>
static __device__ __forceinline__ void hand_over_p(const float (&p)[C.B_r / 2],
                                                   const float (&t)[C.B_r / 2],
                                                   const score_unit_t &unit, uint32_t &parity) {
    float handed[C.B_r / 2];
#pragma unroll
    for (int i = 0; i < C.B_r / 2; ++i)
        handed[i] = p[i];
    if constexpr (has_softcap<C>)
        multiply_by_derivative(handed, t, unit);
    gradient_state_t &state = gradient_state<C>();
    wait_full(state.p_empty, parity ^ 1);
#pragma unroll
    for (int i = 0; i < C.B_r / 8; ++i)
        shared_store(own_p<C>() + i * p_apart,
                     uint4{__float_as_uint(handed[4 * i]), __float_as_uint(handed[4 * i + 1]),
                           __float_as_uint(handed[4 * i + 2]), __float_as_uint(handed[4 * i + 3])});
    mbarrier_arrive(shared_address(&state.p_full));
    parity ^= 1;
}

/* ---- Consumer 0 ---- */

template <flash_config_t C>
static __device__ __forceinline__ void issue_role_s(role_consumer<C, d_head_v<C>> &consumer,
                                                    int stage) {
    if constexpr (has_still_fragments<C>)
        issue_of_row_fragments<operand_dtype<C>, C.B_r, C.d_head>(consumer.s, consumer.still,
                                                                  moving_tile<C>(stage));
    else
        issue_of_rows<operand_dtype<C>, C.B_r, C.d_head, still_panel<C>>(
            consumer.s, still_tile<C>(), moving_tile<C>(stage));
}

template <flash_config_t C, pass_t PASS, bool LAST>
static __device__ __forceinline__ void weigh_step(role_consumer<C, d_head_v<C>> &consumer,
                                                  role_place_t &place, const score_unit_t &unit,
                                                  const block_mask_t &mask) {
    gradient_state_t &state = gradient_state<C>();
    const ring_t ring = place.ring;
    float p[C.B_r / 2];
    weigh<C>(p, consumer.s, ring.stage, unit);
    if (has_mask<C> && mask.is_cut)
        hide<C>(p, mask.seen, mask.first + tile_column());
    give_back<C>(state.empty[ring.stage]);
    hand_over_p<C>(p, consumer.s, unit, place.p_parity);
    wgmma_wait<0>();
    pin_accumulators(consumer.sum);
    if (PASS == SECOND_PASS && mask.is_cut) {
        wait_full(state.v_full[ring.stage], ring.parity);
        await_team(team_of_all<C>()); /* dP has been computed, too */
        sanitise<C, d_head_v<C>, false>(consumer.sum, moving_v_tile<C>(ring.stage),
                                        team_of_consumer(0), mask.seen, mask.first);
    }
    pin_accumulators(p); /* fragments change behind the wait for what reads them */
    release_if(consumer.used >= 0, state.v_empty[max(consumer.used, 0)]);
    round_fragments<operand_dtype<C>, C.B_r>(consumer.fragments, p);
    step<C.n_stages>(place.ring);
    if constexpr (!LAST) {
        wait_full(state.full[place.ring.stage], place.ring.parity);
        issue_role_s<C>(consumer, place.ring.stage);
    }
    wait_full(state.v_full[ring.stage], ring.parity);
    issue_of_fragments<operand_dtype<C>, C.B_r, d_head_v<C>>(consumer.sum, consumer.fragments,
                                                             moving_v_tile<C>(ring.stage));
    consumer.used = ring.stage;
    if constexpr (LAST) {
        wgmma_wait<0>();
        pin_accumulators(consumer.sum);
        release(state.v_empty[ring.stage]);
    } else {
        wgmma_wait<1>();
        pin_accumulators(consumer.s);
    }
}

/* Computes dV of a tile. */
template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ void weigh_tile(role_consumer<C, d_head_v<C>> &consumer,
                                                  role_place_t &place, const dkv_walk_t &walk,
                                                  int32_t heads, const score_unit_t &unit) {
    gradient_state_t &state = gradient_state<C>();
    wait_full(state.full[place.ring.stage], place.ring.parity);
    wait_full(state.still_full, 0);
    if constexpr (has_still_fragments<C>)
        load_fragments<C.d_head, still_panel<C>>(consumer.still, still_tile<C>());
    issue_role_s<C>(consumer, place.ring.stage);
    wgmma_wait<0>();
    pin_accumulators(consumer.s);
    int32_t block = walk.steps.begin;
#pragma unroll 1
    for (int32_t i = heads * count_blocks(walk); i > 1; --i) {
        weigh_step<C, PASS, false>(consumer, place, unit, mask_of_block<C>(walk, block));
        block = next_block(walk, block);
    }
    weigh_step<C, PASS, true>(consumer, place, unit, mask_of_block<C>(walk, block));
}

/* ---- Consumer 1 ---- */

/* Returns the first of the thread's two rows of the tile, which both consumers have. */
static __device__ __forceinline__ int32_t role_row() {
    return warp_row_of_group() + (int32_t)opaque((uint32_t)row_of_warp(0));
}

template <flash_config_t C>
static __device__ __forceinline__ void issue_role_dp(role_consumer<C, C.d_head> &consumer,
                                                     int stage) {
    load_d<C>(consumer.s, stage);
    if constexpr (has_still_fragments<C>)
        issue_of_row_fragments<operand_dtype<C>, C.B_r, d_head_v<C>, true>(
            consumer.s, consumer.still, moving_v_tile<C>(stage));
    else
        issue_of_rows<operand_dtype<C>, C.B_r, d_head_v<C>, still_panel<C>, true>(
            consumer.s, still_v_tile<C>(), moving_v_tile<C>(stage));
}

/* Computes -dS^T. */
template <flash_config_t C>
static __device__ __forceinline__ void take_p(float (&ds)[C.B_r / 2], const float (&dp)[C.B_r / 2],
                                              uint32_t &parity) {
    gradient_state_t &state = gradient_state<C>();
    wait_full(state.p_full, parity);
#pragma unroll
    for (int i = 0; i < C.B_r / 8; ++i) {
        const uint4 p = shared_load(own_p<C>() + i * p_apart);
        ds[4 * i] = __uint_as_float(p.x) * dp[4 * i];
        ds[4 * i + 1] = __uint_as_float(p.y) * dp[4 * i + 1];
        ds[4 * i + 2] = __uint_as_float(p.z) * dp[4 * i + 2];
        ds[4 * i + 3] = __uint_as_float(p.w) * dp[4 * i + 3];
    }
    mbarrier_arrive(shared_address(&state.p_empty));
    parity ^= 1;
}

template <flash_config_t C, pass_t PASS, bool LAST>
static __device__ __forceinline__ void
differentiate_step(role_consumer<C, C.d_head> &consumer, const sm90_backward_params_t &params,
                   role_place_t &place, const ds_place_t &kept, const block_mask_t &mask) {
    gradient_state_t &state = gradient_state<C>();
    const int stage = place.ring.stage;
    float ds[C.B_r / 2];
    take_p<C>(ds, consumer.s, place.p_parity);
    wgmma_wait<0>();
    pin_accumulators(consumer.sum);
    if (PASS == SECOND_PASS && mask.is_cut) {
        hide<C>(ds, mask.seen, mask.first + tile_column());
        await_team(team_of_all<C>()); /* S has been computed, too */
        sanitise<C, C.d_head, true>(consumer.sum, moving_tile<C>(stage), team_of_consumer(1),
                                    mask.seen, mask.first);
    }
    pin_accumulators(ds); /* fragments change behind the wait for what reads them */
    give_back_if<C>(consumer.used >= 0, state.empty[max(consumer.used, 0)]);
    round_fragments<operand_dtype<C>, C.B_r>(consumer.fragments, ds);
    step<C.n_stages>(place.ring);
    if constexpr (!LAST) {
        wait_full(state.full[place.ring.stage], place.ring.parity);
        wait_full(state.v_full[place.ring.stage], place.ring.parity);
        issue_role_dp<C>(consumer, place.ring.stage);
    }
    issue_of_fragments<operand_dtype<C>, C.B_r, C.d_head>(consumer.sum, consumer.fragments,
                                                          moving_tile<C>(stage));
    if constexpr (keeps_ds<C>)
        keep_ds<C>(params, kept, panel_of(kept), mask.first, consumer.fragments);
    consumer.used = stage;
    if constexpr (LAST) {
        wgmma_wait<0>();
        pin_accumulators(consumer.sum);
        give_back<C>(state.empty[stage]);
    } else {
        wgmma_wait<1>();
        pin_accumulators(consumer.s);
        release(state.v_empty[place.ring.stage]);
    }
}

/* Computes dK of a tile. */
template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ void
differentiate_tile(role_consumer<C, C.d_head> &consumer, const sm90_backward_params_t &params,
                   role_place_t &place, const dkv_walk_t &walk) {
    gradient_state_t &state = gradient_state<C>();
    const ring_t first = place.ring;
    wait_full(state.full[first.stage], first.parity);
    wait_full(state.v_full[first.stage], first.parity);
    wait_full(state.still_v_full, 0);
    if constexpr (has_still_fragments<C>)
        load_fragments<d_head_v<C>, still_panel<C>>(consumer.still, still_v_tile<C>());
    issue_role_dp<C>(consumer, first.stage);
    wgmma_wait<0>();
    pin_accumulators(consumer.s);
    release(state.v_empty[first.stage]);
    ds_place_t ds = {};
    if constexpr (keeps_ds<C>) {
        const gradient_tile_t tile = find_gradient_tile<C>(params);
        ds = find_ds_place<C>(params, tile, 0, role_row());
        keep_zeros<C>(params, ds, panel_of(ds),
                      queries_before_passing<C>(params.problem) + walk.steps.begin * C.B_r);
    }
    const int32_t heads = params.problem.group;
    int32_t block = walk.steps.begin;
#pragma unroll 1
    for (int32_t i = heads * count_blocks(walk); i > 1; --i) {
        differentiate_step<C, PASS, false>(consumer, params, place, ds,
                                           mask_of_block<C>(walk, block));
        if (keeps_ds<C> && block + 1 == walk.steps.end)
            ds.first += (uint32_t)params.gradients.ds.head_tiles;
        block = next_block(walk, block);
    }
    differentiate_step<C, PASS, true>(consumer, params, place, ds, mask_of_block<C>(walk, block));
}

/* ---- Tiles ---- */

/* Computes the block's tile in one role, and stores its gradient. compute(consumer, place, walk,
 * pass): a tile that has steps. */
template <flash_config_t C, int COLUMNS, typename COMPUTE>
static __device__ __forceinline__ void play_role(const sm90_backward_params_t &params,
                                                 const flash_gradient_t &gradient, int32_t columns,
                                                 float factor, const COMPUTE &compute) {
    if (!has_rows<C>(find_gradient_tile<C>(params)))
        return;
    role_place_t place = {{0, 0}, 0};
    role_consumer<C, COLUMNS> consumer = {};
    const auto run = [&](auto pass) {
        const dkv_walk_t walk = find_dkv_walk<C, pass.value>(
            params.problem, find_gradient_tile<C>(params), 0, role_row());
        consumer.used = -1;
        clear(consumer.sum);
        if (count_blocks(walk) > 0)
            compute(consumer, place, walk, pass);
    };
    const auto store = [&] {
        const gradient_tile_t tile = find_gradient_tile<C>(params);
        const int32_t row = role_row();
        store_gradient<operand_dtype<C>, COLUMNS>(
            gradient, tile.batch_index, tile.head, tile.sequence.k_begin, tile.begin + row,
            tile.sequence.len_k, columns, consumer.sum, factor);
    };
    run_passes<C>(
        params.problem, [&] { run(pass_constant<FIRST_PASS>()); },
        [&] { run(pass_constant<SECOND_PASS>()); }, [&] { return are_finite(consumer.sum); },
        store);
}

template <flash_config_t C>
static __device__ __forceinline__ void consume_dkv_by_roles(const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    if (consumer_number() == 0) {
        const score_unit_t unit = score_unit_of<has_softcap<C>>(p);
        play_role<C, d_head_v<C>>(
            params, params.gradients.dv, p.d_head_v, 1.0f,
            [&](auto &consumer, role_place_t &place, const dkv_walk_t &walk, auto pass) {
                weigh_tile<C, pass.value>(consumer, place, walk, p.group, unit);
            });
    } else {
        play_role<C, C.d_head>(
            params, params.gradients.dk, p.d_head, -p.softmax_scale,
            [&](auto &consumer, role_place_t &place, const dkv_walk_t &walk, auto pass) {
                differentiate_tile<C, pass.value>(consumer, params, place, walk);
            });
    }
}

#endif
