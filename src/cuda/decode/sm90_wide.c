/*
 * This file describes the SM90_WIDE family to the host: attention of heads of 257 to 512 columns,
 * of any number of queries.
 */
#include "config/kernel_table.h"
#include "config/rules.h"
#include "cuda/decode/plan_rounds.h"
#include "cuda/decode/query_rows.h"
#include "cuda/family.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tma_tensor.h"
#include "cuda/tuning.h"
#include "kernels/sm90/halves_kernel.h"

#include <stddef.h>

enum { STORED_COLUMNS = 4 /* of O, at a time */ };

DEFINE_CHECK(SM90_WIDE_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm90_block_threads(config), halves_shared_bytes(config), 0};
}

/* Returns the keys of a share with FLASH_FLAG_BATCH_INVARIANT. What other sequences have must
 * not decide it: those of a ragged batch are not cut, nor those of several tiles, whose partial
 * results would take gigabytes. */
static int32_t invariant_keys(const flash_config_t *config, const flash_params_t *p) {
    const bool is_one_tile = (int64_t)p->seqlen_q * p->group <= config->B_r;
    return p->cu_seqlens_q == NULL && is_one_tile ? ROUNDS_INVARIANT_KEYS : INT32_MAX;
}

static decode_plan_t plan(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const round_times_t times = {.of_unit = WIDE_TIME_OF_UNIT,
                                 .around_block = WIDE_TIME_AROUND_BLOCK,
                                 .of_merge = WIDE_TIME_OF_MERGE,
                                 .invariant_keys = invariant_keys(config, &problem->params)};
    return plan_rounds(config, problem, device, &times);
}

static const cuda_family_t cuda = {.block = block, .tiles = plan_decode_tiles, .plan = plan};

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    const char *of_pages = paging_sm90_obstacle(config, p);
    if (of_pages != NULL)
        return of_pages;
    if (p->d_head_v % STORED_COLUMNS != 0)
        return "SM90_WIDE kernels need a d_head_v that is a multiple of 4";
    if (!query_rows_aligned(p))
        return "decode kernels need 16-byte aligned rows of Q, K and V";
    const char *of_tma = tma_tensor_kv_obstacle(config, p);
    return of_tma != NULL ? of_tma : plan_decode_obstacle(&cuda, config, problem, device);
}

/* ---- Selection ---- */

/* Declines heads that rows of SM90 compute, with fewer columns. */
static bool declines(const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const kernel_shapes_t shapes = kernel_table_shapes(&family_sm90, problem->op, problem->dtype);
    (void)device;
    return kernel_table_least_shape(shapes, p->d_head, p->d_head_v) != NULL;
}

/* Rows with the same features are the same kernel. */
static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    (void)config;
    (void)problem;
    (void)device;
    return (family_rank_t){0};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .declines = declines,
                                    .cuda = &cuda,
                                    .calls = &sm90_decode_calls};

const family_t family_sm90_wide = {.facts = &family_facts_sm90_wide,
                                   .ops = {[FLASH_OP_FORWARD] = &forward}};
