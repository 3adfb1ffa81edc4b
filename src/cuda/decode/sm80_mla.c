/*
 * This file describes the SM80_MLA family to the host: attention whose V is the first columns of K,
 * with many query heads for each K/V head, as multi-head latent attention has it.
 */
#include "config/rules.h"
#include "core/int64.h"
#include "cuda/decode/plan_rounds.h"
#include "cuda/decode/query_rows.h"
#include "cuda/decode/v_in_k.h"
#include "cuda/family.h"
#include "cuda/tuning.h"
#include "kernels/sm80/mla_kernel.h"

#include <stddef.h>

enum { STORED_COLUMNS = 4 /* of O, at a time */ };

DEFINE_CHECK(SM80_MLA_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){decode_block_threads(config), sm80_mla_shared_bytes(config),
                          DECODE_STATIC_SHARED_BYTES};
}

/* Counts the blocks that run side by side on a multiprocessor. */
static int32_t blocks_per_multiprocessor(const flash_config_t *config, const device_t *device) {
    const int32_t bytes = sm80_mla_shared_bytes(config) + DECODE_STATIC_SHARED_BYTES;
    const int64_t by_memory = device->shared_memory_per_block / bytes;
    return (int32_t)max64(min64(by_memory, sm80_mla_blocks_per_sm(config)), 1);
}

/* A multiprocessor that runs two blocks counts as two. */
static decode_plan_t plan(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    static const round_times_t times = {.of_unit = MLA_TIME_OF_UNIT,
                                        .around_block = MLA_TIME_AROUND_BLOCK,
                                        .of_merge = MLA_TIME_OF_MERGE,
                                        .invariant_keys = ROUNDS_INVARIANT_KEYS};
    device_t counted = *device;
    counted.n_multiprocessors *= blocks_per_multiprocessor(config, device);
    return plan_rounds(config, problem, &counted, &times);
}

static const cuda_family_t cuda = {.block = block, .tiles = plan_decode_tiles, .plan = plan};

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    if (!v_is_in_k(p))
        return "SM80_MLA kernels need V to be the first columns of K: at the same address, with "
               "the same strides and pages";
    if ((config->features & FLASH_FEATURE_PAGED) != 0 && p->pages.page_size == 0)
        return "decode kernels with paged read K and V only in pages";
    if (p->d_head_v % STORED_COLUMNS != 0)
        return "SM80_MLA kernels need a d_head_v that is a multiple of 4";
    if (!query_rows_aligned(p) ||
        !rows_aligned(p->k, &p->k_stride, p->d_head, dtype_size(config->dtype)))
        return "decode kernels need 16-byte aligned rows of Q, K and V";
    return plan_decode_obstacle(&cuda, config, problem, device);
}

/* ---- Selection ---- */

static bool declines(const problem_t *problem, const device_t *device) {
    (void)device;
    return v_in_k_is_small(problem);
}

/* Returns the rows of a K/V head that the choice of a kernel may look at. With
 * FLASH_FLAG_BATCH_INVARIANT the queries of other sequences must not decide it. */
static int64_t seen_rows(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const bool sees_one_query = problem->batch_invariant && p->cu_seqlens_q != NULL;
    return (int64_t)(sees_one_query ? 1 : p->seqlen_q) * p->group;
}

/* Each tile of rows reads all of K, so the fewest tiles come first, then the smallest, then the
 * longest steps. */
static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const int64_t tiles = divide_up(seen_rows(problem), config->B_r);
    (void)device;
    return (family_rank_t){.time = tiles,
                           .preference = (int64_t)config->B_r * DECODE_UNIT_KEYS - config->B_c,
                           .passes = tiles};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .declines = declines,
                                    .cuda = &cuda,
                                    .calls = &sm80_decode_calls};

const family_t family_sm80_mla = {.facts = &family_facts_sm80_mla,
                                  .ops = {[FLASH_OP_FORWARD] = &forward}};
