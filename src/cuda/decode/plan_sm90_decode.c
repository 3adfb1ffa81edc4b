/*
 * This file plans and estimates calls of SM90_DECODE.
 */
#include "cuda/decode/plan_sm90_decode.h"

#include "core/int64.h"
#include "cuda/decode/plan_rounds.h"
#include "cuda/sm90/schedule_sm90.h"
#include "cuda/tuning.h"

/* Returns the time of a tile of B_r rows for a unit of keys. */
static int64_t time_of_unit(int32_t B_r) {
    return B_r > 64 ? SM90_DECODE_TIME_OF_128_ROWS * B_r / 128 : SM90_DECODE_TIME_OF_64_ROWS;
}

static round_times_t times_of(int32_t B_r) {
    return (round_times_t){.of_unit = time_of_unit(B_r),
                           .around_block = SM90_DECODE_TIME_AROUND_BLOCK,
                           .of_merge = SM90_DECODE_TIME_OF_MERGE,
                           .invariant_keys = ROUNDS_INVARIANT_KEYS};
}

decode_plan_t plan_sm90_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device) {
    const round_times_t times = times_of(config->B_r);
    return plan_rounds(config, problem, device, &times);
}

int64_t estimate_sm90_decode(int32_t B_r, const problem_t *problem, const device_t *device) {
    const round_times_t times = times_of(B_r);
    const int64_t more_rounds = max64(estimate_round_count(B_r, problem, device) - 2, 0);
    return estimate_rounds(B_r, problem, device, &times) +
           more_rounds * SM90_DECODE_TIME_BETWEEN_ROUNDS;
}

int64_t estimate_sm90_forward(int32_t B_r, const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const int64_t sharing = schedule_sm90_most_sharing(p);
    const int64_t tiles_of_sequence = p->n_heads / sharing * divide_up(p->seqlen_q * sharing, B_r);
    const int64_t tiles = selection_batch(problem) * tiles_of_sequence;
    const int64_t rounds = divide_up(tiles, max64(device->n_multiprocessors, 1));
    return rounds * (estimate_mean_units(p) * time_of_unit(B_r) + SM90_DECODE_TIME_AROUND_TILE);
}
