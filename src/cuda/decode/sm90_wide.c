/*
 * This file describes the SM90_WIDE family to the host: attention of heads of 257 to 512 columns,
 * of any number of queries.
 */
#include "config/rules.h"
#include "cuda/decode/query_rows.h"
#include "cuda/decode/wide_heads.h"
#include "cuda/family.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tma_tensor.h"
#include "kernels/sm90/halves_kernel.h"

#include <stddef.h>

enum { STORED_COLUMNS = 4 /* of O, at a time */ };

DEFINE_CHECK(SM90_WIDE_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm90_block_threads(config), halves_shared_bytes(config), 0};
}

static bool hides_holes(const flash_config_t *config) {
    return sm90_hides_holes(config) != 0;
}

static const cuda_family_t cuda = {.block = block,
                                   .tiles = plan_decode_tiles,
                                   .plan = plan_wide_heads,
                                   .hides_holes = hides_holes};

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
    (void)device;
    return serves_heads(&family_sm90, problem);
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
