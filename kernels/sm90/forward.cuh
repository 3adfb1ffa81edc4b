/*
 * The SM90 kernel: FlashAttention by warps with different roles (FlashAttention-3, Shah et al.,
 * arXiv 2407.08608), specialised by a configuration. The warps of the first warpgroup hand out
 * tiles, load and store by TMA, and look over V; each of the others multiplies by wgmma for 64 rows
 * of Q. A generated wrapper gives each configuration its name:
 *
 *     static constexpr flash_config_t config = {...};
 *     extern "C" __global__ void __launch_bounds__(sm90_block_threads(&config), 1)
 *     NAME(const __grid_constant__ sm90_params_t params) {
 *         sm90_forward<config>(params);
 *     }
 *
 * With fixed_reference, tiles that it did not do for are noted, and done again after all others
 * with a running maximum, over what the first pass has stored.
 */
#ifndef FLASH_KERNELS_SM90_FORWARD_CUH
#define FLASH_KERNELS_SM90_FORWARD_CUH

#include "sm90/carrier.cuh"
#include "sm90/epilogue.cuh"
#include "sm90/producer.cuh"

template <flash_config_t C>
static __device__ __forceinline__ void note_failure_if(bool failed, int32_t round) {
    const int32_t note = note_of(round);
    shared_or_if(failed, shared_address(&block_state<C>().failed[note / 32]), 1u << note % 32);
}

/* Rows that see no key. */
template <flash_config_t C>
static __device__ __forceinline__ void store_empty_tile(const flash_params_t &problem,
                                                        const tile_of<C> &tile) {
    const rounded_output<C> zeros = {};
    store_lse<C>(problem, tile, -INFINITY);
    store_output<C>(problem, tile, zeros);
}

/* Waits for the next tile that has blocks to visit; those without are done on the way. False: the
 * pass is over. */
template <flash_config_t C>
static __device__ __forceinline__ bool find_work(const sm90_params_t &params,
                                                 consumer_state<C> &x) {
    assignment_of<C> assignment = await_assignment<C>(x.assignments);
#pragma unroll 1
    while (assignment.round >= 0 && !has_blocks(assignment.tile)) {
        store_empty_tile<C>(params.problem, assignment.tile);
        release_assignment<C>(x.assignments);
        assignment = await_assignment<C>(x.assignments);
    }
    return assignment.round >= 0;
}

/* The tile after this one. */
template <flash_config_t C>
static __device__ __forceinline__ assignment_of<C> await_following(ring_t assignments) {
    step<TILES_AHEAD>(assignments);
    return await_assignment<C>(assignments);
}

/* What is left of a tile when its last PV is done. */
template <flash_config_t C> struct finished_tile {
    rounded_output<C> o;
    float lse;
    bool hidden;
    bool failed;
};

/* Gives V back, and takes the results out of the accumulators. No branch: the next tile's QK^T is
 * under way. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void finish_tile(finished_tile<C> &done, const score_unit_t &unit,
                                                   consumer_state<C> &x) {
    done.hidden = is_guarded<C, FIXED> && values_hidden<C>(x.assignments.stage);
    finish_output<C>(x);
    finish_sums(x.softmax);
    done.lse = row_lse(x.softmax, unit);
    normalize_output<C>(x.o, x.softmax);
    round_output<C>(done.o, x.o);
    done.failed = FIXED && failed<C>(x.softmax, done.o);
}

/* STAGED: O may leave through shared memory, since another tile follows. The other stores come
 * after its fence, which would wait for them. Its place is waited for even where O is stored from
 * registers: the carrier has then read where O of the tile before lies. */
template <flash_config_t C, bool STAGED>
static __device__ __forceinline__ void
store_tile(const sm90_params_t &params, const finished_tile<C> &done, consumer_state<C> &x) {
    const assignment_of<C> assignment = read_assignment<C>(x.assignments);
    uint32_t place = 0;
    if constexpr (STAGED)
        place = await_output_place<C>(x);
    if (STAGED && !done.hidden) {
        stage_output<C>(done.o, place);
    } else {
        store_output<C>(params.problem, assignment.tile, done.o);
        if (done.hidden)
            complete_output<C>(params.problem, assignment.tile);
    }
    if constexpr (STAGED)
        hand_over_output<C>(done.hidden ? 0 : place, x);
    store_lse<C>(params.problem, assignment.tile, done.lse);
    if constexpr (C.fixed_reference)
        note_failure_if<C>(done.failed, assignment.round);
    x.o_parity ^= 1;
    release_assignment<C>(x.assignments);
}

/* Tiles one after the other, from one that has blocks to the last before one that has not: the last
 * PV of each and the first QK^T of the next are under way together. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void
compute_tiles(const sm90_params_t &params, const score_unit_t &unit, consumer_state<C> &x) {
    finished_tile<C> done;
    x.walk = find_walk<C>(params.problem, read_assignment<C>(x.assignments).tile, x.number);
    start_tile<C>(x);
    hand_over_output<C>(0, x);
    wgmma_wait<0>();
    while (true) {
        x.o = output_tile<C>{};
        const tile_of<C> tile = read_assignment<C>(x.assignments).tile;
        process_blocks<C, FIXED>(params.problem, walked_tile<C>(tile, x.walk), unit, x);
        const assignment_of<C> next = await_following<C>(x.assignments);
        if (next.round < 0 || !has_blocks(next.tile))
            break;
        await_v<C>(x);
        await_turn<C>(x);
        issue_output<C>(x.o, x.p, x.v.stage);
        x.walk = find_walk<C>(params.problem, next.tile, x.number);
        if constexpr (starts_early<C>)
            start_tile<C>(x);
        pass_turn<C>(x);
        wgmma_wait<starts_early<C> ? 1 : 0>();
        finish_tile<C, FIXED>(done, unit, x);
        if constexpr (starts_early<C>)
            wgmma_wait<0>();
        else
            start_tile<C>(x);
        store_tile<C, has_staged_output<C>>(params, done, x);
        if constexpr (!starts_early<C>)
            wgmma_wait<0>();
    }
    await_v<C>(x);
    await_turn<C>(x);
    issue_output<C>(x.o, x.p, x.v.stage);
    pass_turn<C>(x);
    wgmma_wait<0>();
    finish_tile<C, FIXED>(done, unit, x);
    store_tile<C, false>(params, done, x);
}

template <flash_config_t C, int PASS>
static __device__ __forceinline__ void consume_pass(const sm90_params_t &params,
                                                    consumer_state<C> &x) {
    constexpr bool fixed = C.fixed_reference && PASS == FIRST_PASS;
    const score_unit_t unit = score_unit_of<has_softcap<C>>(params.problem);
#pragma unroll 1
    while (find_work<C>(params, x))
        compute_tiles<C, fixed>(params, unit, x);
    release_assignment<C>(x.assignments);
}

/* Waits until all roles have done the first pass; whether tiles failed in it. If so, what it stored
 * comes before what the second one will store there. */
template <flash_config_t C> static __device__ __forceinline__ bool await_second_pass() {
    __syncthreads();
    if (!any_failed<C>())
        return false;
    tma_store_wait();
    async_proxy_fence_global();
    __syncthreads();
    return true;
}

template <flash_config_t C>
static __device__ __forceinline__ void consume(const sm90_params_t &params) {
    consumer_state<C> x;
    x.q_place = x.k = x.v = x.assignments = ring_t{0, 0};
    x.o_parity = 0;
    x.number = consumer_number();
    start_turns<C>(x);
    consume_pass<C, FIRST_PASS>(params, x);
    if constexpr (C.fixed_reference)
        if (await_second_pass<C>())
            consume_pass<C, SECOND_PASS>(params, x);
}

/* By one thread of the warp; tiles without blocks have nothing to load. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void produce_pass(const sm90_params_t &params,
                                                    producer_t &producer, ring_t &assignments) {
    for (assignment_of<C> assignment = take_assignment<C>(assignments); assignment.round >= 0;
         assignment = take_assignment<C>(assignments))
        if (has_blocks(assignment.tile) && elect_one())
            load_tile<C, FIXED>(params, assignment.tile, producer);
}

template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void guard_pass(guard_t &guard, ring_t &assignments) {
    while (true) {
        const int place = assignments.stage;
        const assignment_of<C> assignment = take_assignment<C>(assignments);
        if (assignment.round < 0)
            break;
        if (has_blocks(assignment.tile))
            guard_tile<C, FIXED>(assignment.tile, guard, place);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void produce(const sm90_params_t &params) {
    producer_t producer = {{0, 0}, {0, 0}, 0};
    ring_t assignments = {0, 0};
    produce_pass<C, C.fixed_reference>(params, producer, assignments);
    if constexpr (C.fixed_reference)
        if (await_second_pass<C>())
            produce_pass<C, false>(params, producer, assignments);
}

template <flash_config_t C>
static __device__ __forceinline__ void schedule(const sm90_params_t &params) {
    announcer_t to = {{0, 0}, has_varlen<C>};
    schedule_pass<C, FIRST_PASS>(params, to);
    if constexpr (C.fixed_reference)
        if (await_second_pass<C>())
            schedule_pass<C, SECOND_PASS>(params, to);
}

template <flash_config_t C>
static __device__ __forceinline__ void carry(const sm90_params_t &params) {
    carrier_of<C> carrier = {{}, {0, 0}, 0};
    ring_t assignments = {0, 0};
    carry_pass<C>(params, carrier, assignments);
    if constexpr (C.fixed_reference)
        if (await_second_pass<C>())
            carry_pass<C>(params, carrier, assignments);
}

template <flash_config_t C> static __device__ __forceinline__ void guard() {
    guard_t guard = {{0, 0}, 0};
    ring_t assignments = {0, 0};
    if constexpr (has_mask<C>)
        guard_pass<C, C.fixed_reference>(guard, assignments);
    if constexpr (C.fixed_reference)
        if (await_second_pass<C>() && has_mask<C>)
            guard_pass<C, false>(guard, assignments);
}

template <flash_config_t C>
static __device__ __forceinline__ void load(const sm90_params_t &params) {
    const int warp = threadIdx.x / warp_threads;
    if (warp != SCHEDULER_WARP || has_varlen<C>)
        __syncthreads();
    if (warp == PRODUCER_WARP)
        produce<C>(params);
    else if (warp == SCHEDULER_WARP)
        schedule<C>(params);
    else if (warp == CARRIER_WARP)
        carry<C>(params);
    else
        guard<C>();
}

/* By one thread: the maps come while the block begins. */
static __device__ __forceinline__ void prefetch_maps(const sm90_params_t &params) {
    tma_prefetch_map(&params.q);
    tma_prefetch_map(&params.k);
    tma_prefetch_map(&params.v);
    tma_prefetch_map(&params.o);
}

template <flash_config_t C>
static __device__ __forceinline__ void sm90_forward(const sm90_params_t &params) {
    assert_legal<C>();
    if (threadIdx.x == CARRIER_WARP * warp_threads)
        prefetch_maps(params);
    initialize_block_state<C>(params.problem);
    if (threadIdx.x >= SM90_WARPGROUP_THREADS) {
        __syncthreads();
        acquire_registers<consumer_registers<C>>();
        consume<C>(params);
    } else {
        release_registers<producer_registers<C>>();
        load<C>(params);
    }
}

#endif
