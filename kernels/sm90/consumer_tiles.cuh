/*
 * A consumer goes from tile to tile: it computes each (mma/consumer.cuh) and stores it (store/).
 * Between two tiles the tensor cores have nothing but the last PV of the one and the first QK^T of
 * the next, so the rest of the work is done beside these.
 */
#ifndef FLASH_KERNELS_SM90_CONSUMER_TILES_CUH
#define FLASH_KERNELS_SM90_CONSUMER_TILES_CUH

#include "sm90/load/sanitise_v.cuh"
#include "sm90/mma/consumer.cuh"
#include "sm90/mma/in_parts.cuh"
#include "sm90/mma/look_ahead.cuh"
#include "sm90/mma/one_part.cuh"
#include "sm90/schedule/schedule.cuh"
#include "sm90/store/direct.cuh"
#include "sm90/store/staged.cuh"

/* Stores a tile whose rows see no key. */
template <flash_config_t C>
static __device__ __forceinline__ void store_empty_tile(const flash_params_t &problem,
                                                        const tile_of<C> &tile) {
    const rounded_output<C> zeros = {};
    const output_tile<C> fp32_zeros = {};
    store_lse<C>(problem, tile, -INFINITY);
    if (sm90_has_fp32_o(&problem))
        store_fp32_output<C>(problem, tile, fp32_zeros, true);
    else
        store_output<C>(problem, tile, zeros, true);
}

/* Waits for the next tile that has blocks of keys, and stores those without on the way. Returns
 * false when the pass is over. */
template <flash_config_t C>
static __device__ __forceinline__ bool find_work(const sm90_params_t &params,
                                                 consumer_state<C> &consumer) {
    assignment_of<C> assignment = await_assignment<C>(consumer.assignments);
#pragma unroll 1
    while (assignment.index >= 0 && !has_blocks(assignment.tile)) {
        store_empty_tile<C>(params.problem, assignment.tile);
        release_assignment<C>(consumer.assignments);
        assignment = await_assignment<C>(consumer.assignments);
    }
    return assignment.index >= 0;
}

/* Waits for the tile after this one. */
template <flash_config_t C>
static __device__ __forceinline__ assignment_of<C> await_following(ring_t assignments) {
    step<ASSIGNMENT_SLOTS>(assignments);
    return await_assignment<C>(assignments);
}

/* This is what is left to store of a tile when its last PV is done. */
template <flash_config_t C> struct finished_tile {
    rounded_output<C> o;
    float lse;
    bool sanitised; /* V had infinities or NaNs, by which O must be completed */
    bool failed;    /* the fixed reference does not serve the tile */
};

/* These join O at the end of a tile: the sink of the warp's head, and the scale of V of e4m3 that
 * is multiplied as such. */
typedef struct output_factors {
    float sink;
    float v_scale;
} output_factors_t;

/* Releases the last stage of V, whose products join O. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void end_output(finished_tile<C> &done,
                                                  consumer_state<C> &consumer) {
    done.sanitised = sanitises_v<C, FIXED> && v_was_sanitised<C>(consumer.assignments.stage);
    finish_output<C>(consumer);
}

/* Takes the results out of the accumulators. There is no branch: the next tile's QK^T is under way.
 */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void
take_results(finished_tile<C> &done, const flash_params_t &problem, const softmax_units<C> &unit,
             const output_factors_t &factors, consumer_state<C> &consumer) {
    finish_sums(consumer.softmax);
    done.lse = row_lse<C>(consumer.softmax, unit);
    if constexpr (multiplies_e4m3<C>) {
        consumer.softmax.sum[0] = consumer.second.weight[0];
        consumer.softmax.sum[1] = consumer.second.weight[1];
    }
    normalize_output<C>(consumer.o, consumer.softmax, unit, factors.sink,
                        multiplies_e4m3<C> ? factors.v_scale : output_scale<C>(consumer));
    round_output<C>(done.o, consumer.o, problem);
    done.failed = false;
    if constexpr (FIXED)
        done.failed = failed<C>(consumer.softmax, done.o) || needs_second_pass(unit);
}

/* Stores the O of a finished tile from registers, and completes it: in 16 bits or, where O is of
 * fp32, from the accumulators o. They still hold it because such a tile is LAST: it does not
 * overlap the one after it. */
template <flash_config_t C, bool LAST>
static __device__ __forceinline__ void
store_from_registers(const flash_params_t &problem, const tile_of<C> &tile,
                     const finished_tile<C> &done, const output_tile<C> &o) {
    const bool fp32 = LAST && sm90_has_fp32_o(&problem);
    store_output<C>(problem, tile, done.o, !fp32);
    if constexpr (LAST)
        store_fp32_output<C>(problem, tile, o, fp32);
    if (done.sanitised && !fp32)
        complete_output<C, o_element_bits<C>>(problem, tile);
    if (done.sanitised && fp32)
        complete_output<C, float>(problem, tile);
}

/* Stores a finished tile. With FOLLOWED the next tile has begun, and O may leave through shared
 * memory. The other stores come after the fence of staged O, which would wait for them. The shared
 * memory is waited for even where O is stored from registers: the Q-load/O-store warp has then read
 * where the O of the tile before is staged. */
template <flash_config_t C, bool FOLLOWED>
static __device__ __forceinline__ void
store_tile(const sm90_params_t &params, const finished_tile<C> &done, consumer_state<C> &consumer) {
    const assignment_of<C> assignment = read_assignment<C>(consumer.assignments);
    constexpr bool staged = FOLLOWED && stages_o<C>;
    uint32_t shared = 0;
    if constexpr (staged)
        shared = await_o_slot<C>(consumer);
    if (staged && !done.sanitised)
        stage_output<C>(done.o, shared);
    else
        store_from_registers<C, !FOLLOWED>(params.problem, assignment.tile, done, consumer.o);
    if constexpr (staged)
        hand_over_output<C>(done.sanitised ? 0 : shared, consumer);
    store_lse<C>(params.problem, assignment.tile, done.lse);
    if constexpr (C.fixed_reference)
        record_failure_if<C>(done.failed, assignment.index);
    consumer.o_parity ^= 1;
    release_assignment<C>(consumer.assignments);
}

/* Loads what joins the O of the tile that the consumer is at, to be used when its last PV is done.
 */
template <flash_config_t C>
static __device__ __forceinline__ output_factors_t
load_factors_of_tile(const flash_params_t &problem, const consumer_state<C> &consumer) {
    const tile_of<C> tile = read_assignment<C>(consumer.assignments).tile;
    output_factors_t factors = {load_sink(problem, head_of_warp<C>(problem, tile)), 1.0f};
    if constexpr (multiplies_e4m3<C>)
        factors.v_scale = load_scale(problem.v_scale, tile.batch_index, tile.head / problem.group);
    return factors;
}

/* Returns the units of the tile that the consumer is at. */
template <flash_config_t C>
static __device__ __forceinline__ score_units<C> units_of_next(const flash_params_t &problem,
                                                               const score_unit_t &call_unit,
                                                               const consumer_state<C> &consumer) {
    if constexpr (multiplies_e4m3<C>)
        return load_units<C>(problem, read_assignment<C>(consumer.assignments).tile, call_unit);
    else
        return units_of_tile<C>(call_unit, consumer.q_slot);
}

/* Says whether the last PV of a tile and the first QK^T of the next one are under way together.
 * They are not with an O of fp32, which leaves from the accumulators: there are no registers for it
 * then. */
static __device__ __forceinline__ bool overlaps_next(const flash_params_t &problem,
                                                     const query_tile_t &next, int32_t index) {
    return index >= 0 && has_blocks(next) && !sm90_has_fp32_o(&problem);
}

/* Starts a tile that does not overlap the one before it, and waits for its first QK^T. */
template <flash_config_t C>
static __device__ __forceinline__ void start_alone(const flash_params_t &problem,
                                                   consumer_state<C> &consumer) {
    consumer.walk =
        find_walk<C>(problem, read_assignment<C>(consumer.assignments).tile, consumer.number);
    start_tile<C>(consumer);
    await_hand_over<C>(consumer);
    hand_over_output<C>(0, consumer);
    wgmma_wait<0>();
}

/* Finishes a tile while the next one starts: the last PV of the one and the first QK^T of the other
 * are under way together. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void
finish_beside_next(const sm90_params_t &params, const tile_of<C> &next, const score_units<C> &unit,
                   finished_tile<C> &done, consumer_state<C> &consumer) {
    await_v<C>(consumer);
    await_turn<C>(consumer);
    issue_block_output<C>(consumer);
    consumer.walk = find_walk<C>(params.problem, next, consumer.number);
    if constexpr (starts_early<C>)
        start_tile<C>(consumer);
    pass_turn<C>(consumer);
    const output_factors_t factors = load_factors_of_tile<C>(params.problem, consumer);
    if constexpr (has_parts_in_s<C>)
        await_part<C, 0>();
    else
        wgmma_wait<starts_early<C> ? 1 : 0>();
    end_output<C, FIXED>(done, consumer);
    if constexpr (has_parts_in_s<C>) /* which leave registers for S from here on */
        start_tile<C>(consumer);
    take_results<C, FIXED>(done, params.problem, softmax_unit<C>(params.problem, unit), factors,
                           consumer);
    if constexpr (starts_early<C>)
        wgmma_wait<0>();
    else if constexpr (!has_parts_in_s<C>)
        start_tile<C>(consumer);
    store_tile<C, true>(params, done, consumer);
    if constexpr (!starts_early<C>)
        wgmma_wait<0>();
}

/* Finishes a tile that the next one does not overlap. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void
finish_alone(const sm90_params_t &params, const score_units<C> &unit, finished_tile<C> &done,
             consumer_state<C> &consumer) {
    await_v<C>(consumer);
    await_turn<C>(consumer);
    issue_block_output<C>(consumer);
    pass_turn<C>(consumer);
    const output_factors_t factors = load_factors_of_tile<C>(params.problem, consumer);
    wgmma_wait<0>();
    end_output<C, FIXED>(done, consumer);
    take_results<C, FIXED>(done, params.problem, softmax_unit<C>(params.problem, unit), factors,
                           consumer);
    store_tile<C, false>(params, done, consumer);
}

/* Computes tiles one after the other: from one that has blocks of keys to the first that does not
 * overlap the tile after it. In the second pass none does: that is less code. */
template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void compute_tiles(const sm90_params_t &params,
                                                     const score_unit_t &call_unit,
                                                     consumer_state<C> &consumer) {
    finished_tile<C> done; /* of both ends: with one in each, ptxas adds an instruction */
    score_units<C> unit;
    start_alone<C>(params.problem, consumer);
    while (true) {
        consumer.o = output_tile<C>{};
        if constexpr (multiplies_e4m3<C>)
            consumer.second = second_level_of<C>{};
        unit = units_of_next<C>(params.problem, call_unit, consumer);
        const auto read_tile = [&] {
            return walked_tile<C>(read_assignment<C>(consumer.assignments).tile, consumer.walk);
        };
        if constexpr (looks_ahead<C>)
            process_ahead<C>(params.problem, read_tile(), unit, consumer);
        else if constexpr (multiplies_e4m3<C> && has_one_part<C>)
            process_in_one_part<C>(params.problem, read_tile(), unit, consumer);
        else if constexpr (multiplies_e4m3<C>)
            process_in_parts<C>(params.problem, read_tile(), unit, consumer);
        else if constexpr (has_bias<C>)
            process_shown_blocks<C>(params.problem, read_tile, unit, consumer);
        else
            process_blocks<C, FIXED>(params.problem, read_tile(), unit, consumer);
        if constexpr (is_second_pass<C, FIXED>)
            break;
        const assignment_of<C> next = await_following<C>(consumer.assignments);
        if (!overlaps_next(params.problem, next.tile, next.index))
            break;
        finish_beside_next<C, FIXED>(params, next.tile, unit, done, consumer);
    }
    finish_alone<C, FIXED>(params, unit, done, consumer);
}

template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void consume_pass(const sm90_params_t &params,
                                                    consumer_state<C> &consumer) {
    const score_unit_t unit = score_unit_of<has_softcap<C>>(params.problem);
#pragma unroll 1
    while (find_work<C>(params, consumer))
        compute_tiles<C, FIXED>(params, unit, consumer);
    release_assignment<C>(consumer.assignments);
}

#endif
