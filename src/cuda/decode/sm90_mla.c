/*
 * This file describes the SM90_MLA family to the host: attention whose V is the first columns of K,
 * with many query heads for each K/V head, as multi-head latent attention decodes.
 */
#include "config/rules.h"
#include "cuda/decode/plan_rounds.h"
#include "cuda/decode/query_rows.h"
#include "cuda/decode/v_in_k.h"
#include "cuda/family.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tma_tensor.h"
#include "cuda/tuning.h"
#include "kernels/sm90/halves_kernel.h"

#include <stddef.h>

enum { STORED_COLUMNS = 4 /* of O, at a time */ };

DEFINE_CHECK(SM90_MLA_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm90_block_threads(config), halves_shared_bytes(config), 0};
}

/* Says whether four elements of O can be stored at a time, wherever they begin. */
static bool stores_four(const flash_params_t *p) {
    const uintptr_t bytes = 4 * (uintptr_t)dtype_size(p->o_dtype);
    const flash_strides_t *s = &p->o_stride;
    return (uintptr_t)p->o % bytes == 0 && s->batch % 4 == 0 && s->seq % 4 == 0 && s->head % 4 == 0;
}

static decode_plan_t plan(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const round_times_t times = {.of_unit = MLA_TIME_OF_UNIT,
                                 .around_block = MLA_TIME_AROUND_BLOCK,
                                 .of_merge = MLA_TIME_OF_MERGE,
                                 .invariant_keys = ROUNDS_INVARIANT_KEYS,
                                 .walks = halves_walks(config) != 0};
    return plan_rounds(config, problem, device, &times);
}

static bool hides_holes(const flash_config_t *config) {
    return sm90_hides_holes(config) != 0;
}

static const cuda_family_t cuda = {
    .block = block, .tiles = plan_decode_tiles, .plan = plan, .hides_holes = hides_holes};

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    if (!v_is_in_k(p))
        return "SM90_MLA kernels need V to be the first columns of K: at the same address, with "
               "the same strides and pages";
    const char *of_pages = paging_sm90_obstacle(config, p);
    if (of_pages != NULL)
        return of_pages;
    if (p->d_head_v % STORED_COLUMNS != 0)
        return "SM90_MLA kernels need a d_head_v that is a multiple of 4";
    if (!query_rows_aligned(p))
        return "decode kernels need 16-byte aligned rows of Q, K and V";
    if (halves_walks(config) && !stores_four(p))
        return "persistent SM90_MLA kernels store four elements of O at a time: its address and "
               "strides must be multiples of their bytes";
    const char *of_parts = halves_walks(config) ? parts_obstacle(problem) : NULL;
    if (of_parts != NULL)
        return of_parts;
    const tma_tensor_t k = tma_tensor_k(config, p);
    const char *of_tma = tma_tensor_obstacle(&k);
    return of_tma != NULL ? of_tma : plan_decode_obstacle(&cuda, config, problem, device);
}

/* ---- Selection ---- */

/* Declines where K and V are the same small tensor, which other families read faster. */
static bool declines(const problem_t *problem, const device_t *device) {
    (void)device;
    return v_in_k_is_small(problem);
}

/* Rows with the same features differ in whether their blocks walk parts of the batch. */
static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const bool is_better = halves_walks(config) == parts_pay(config->B_r, problem, device);
    return (family_rank_t){.time = is_better ? 1 : 2};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .declines = declines,
                                    .cuda = &cuda,
                                    .calls = &sm90_decode_calls};

const family_t family_sm90_mla = {.facts = &family_facts_sm90_mla,
                                  .ops = {[FLASH_OP_FORWARD] = &forward}};
