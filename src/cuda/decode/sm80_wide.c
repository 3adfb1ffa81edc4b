/*
 * This file describes the SM80_WIDE family to the host: attention of heads of 257 to 512 columns,
 * of any number of queries, where the SM90_WIDE family does not run.
 */
#include "config/rules.h"
#include "cuda/decode/query_rows.h"
#include "cuda/decode/wide_heads.h"
#include "cuda/family.h"
#include "kernels/sm80/mla_kernel.h"

#include <stddef.h>

DEFINE_CHECK(SM80_WIDE_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){decode_block_threads(config), sm80_mla_shared_bytes(config),
                          DECODE_STATIC_SHARED_BYTES};
}

static bool hides_holes(const flash_config_t *config) {
    return sm80_mla_hides_holes(config) != 0;
}

static const cuda_family_t cuda = {.block = block,
                                   .tiles = plan_decode_tiles,
                                   .plan = plan_wide_heads,
                                   .hides_holes = hides_holes};

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    const int32_t kv_bytes = dtype_size(config->dtype);
    if ((config->features & FLASH_FEATURE_PAGED) != 0 && p->pages.page_size == 0)
        return "decode kernels with paged read K and V only in pages";
    if (!query_rows_aligned(p) || !rows_aligned(p->k, &p->k_stride, p->d_head, kv_bytes) ||
        !rows_aligned(p->v, &p->v_stride, p->d_head_v, kv_bytes))
        return "decode kernels need 16-byte aligned rows of Q, K and V";
    return plan_decode_obstacle(&cuda, config, problem, device);
}

/* ---- Selection ---- */

/* Declines heads that rows of SM80 compute, with fewer columns. */
static bool declines(const problem_t *problem, const device_t *device) {
    (void)device;
    return serves_heads(&family_sm80, problem);
}

/* Steps of more keys have fewer barriers, where there is memory for them. */
static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    (void)problem;
    (void)device;
    return (family_rank_t){.preference = -(int64_t)config->B_c};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .declines = declines,
                                    .cuda = &cuda,
                                    .calls = &sm80_decode_calls};

const family_t family_sm80_wide = {.facts = &family_facts_sm80_wide,
                                   .ops = {[FLASH_OP_FORWARD] = &forward}};
