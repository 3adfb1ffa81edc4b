/*
 * This file describes the SM80 family to the host: the rules among its fields, its obstacles, and
 * how its rows compare, by the strategies that always pay and then by estimated time.
 */
#include "config/rules.h"
#include "cuda/family.h"
#include "cuda/sm80/sm80_backward.h"
#include "cuda/tuning.h"
#include "kernels/sm80/sm80_kernel.h"

#include <stddef.h>

DEFINE_CHECK(SM80_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm80_block_threads(config), sm80_shared_bytes(config),
                          SM80_STATIC_SHARED_BYTES};
}

static const cuda_family_t cuda = {.block = block, .tiles = sm80_grid_blocks};

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    if (sm80_has_pages(config) && problem->params.pages.page_size == 0)
        return "SM80 kernels with paged read K and V only in pages";
    const char *of_launch = cuda_launch_obstacle(&cuda, config, problem, device);
    if (of_launch != NULL)
        return of_launch;
    return sm80_serves_alignment(config, &problem->params)
               ? NULL
               : "kernels with async_copy need 16-byte aligned rows of Q, K and V";
}

/* ---- Selection ---- */

/* Estimates the time of the multiprocessor that works longest, in rows of Q. */
static int64_t estimated_time(const flash_config_t *config, const problem_t *problem,
                              const device_t *device) {
    const int64_t n = device->n_multiprocessors;
    const int64_t blocks = sm80_grid_blocks(config, &problem->params);
    return (blocks + n - 1) / n * (config->B_r + SM80_STEP_ROWS);
}

/* Short sequences want few steps, long ones short steps. */
static int32_t step_preference(const flash_config_t *config, const problem_t *problem) {
    const bool is_short =
        !problem->batch_invariant && problem_mean_keys(&problem->params) < SM80_LONG_KEYS;
    return is_short ? -config->B_c : config->B_c;
}

static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const int32_t strategies = config->async_copy + config->eager_load_blocks + config->swizzled +
                               config->optimized_softmax;
    return (family_rank_t){
        .without_strategies = -strategies,
        .time = problem->batch_invariant ? 0 : estimated_time(config, problem, device),
        .preference = step_preference(config, problem)};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .part = FAMILY_FORWARD_PART,
                                    .cuda = &cuda,
                                    .calls = &sm80_forward_calls};

const family_t family_sm80 = {.facts = &family_facts_sm80,
                              .ops = {[FLASH_OP_FORWARD] = &forward,
                                      [FLASH_OP_BACKWARD_DQ] = &sm80_backward_dq,
                                      [FLASH_OP_BACKWARD_DKV] = &sm80_backward_dkv}};
