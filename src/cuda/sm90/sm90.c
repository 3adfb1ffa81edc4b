/*
 * This file describes the SM90 family to the host: the rules among its fields, its obstacles, and
 * how its rows compare: the most strategies that always pay, then the least estimated time.
 */
#include "config/rules.h"
#include "cuda/family.h"
#include "cuda/sm90/mask_blocks_sm90.h"
#include "cuda/sm90/schedule_sm90.h"
#include "cuda/sm90/sm90_backward.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tma_tensor.h"
#include "cuda/tuning.h"
#include "kernels/common/operand.h"
#include "kernels/sm90/sm90_kernel.h"

#include <stddef.h>

DEFINE_CHECK(SM90_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm90_block_threads(config), sm90_shared_bytes(config), 0};
}

static const cuda_family_t cuda = {.block = block, .tiles = schedule_sm90_tiles};

/* O of fp32 is stored two columns of a row at a time. */
static const char *fp32_o_obstacle(const flash_params_t *p) {
    const flash_strides_t *stride = &p->o_stride;
    const uint64_t elements = (uint64_t)stride->batch | (uint64_t)stride->seq |
                              (uint64_t)stride->head | (uint64_t)p->d_head_v;
    return (uintptr_t)p->o % (2 * sizeof(float)) == 0 && elements % 2 == 0
               ? NULL
               : "SM90 kernels need 8-byte aligned rows of an O of fp32";
}

static const char *o_obstacle(const flash_config_t *config, const flash_params_t *p) {
    const tma_tensor_t o = tma_tensor_o(config, p);
    return sm90_has_fp32_o(p) ? fp32_o_obstacle(p) : tma_tensor_obstacle(&o);
}

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    const tma_tensor_t tensors[] = {tma_tensor_q(config, p), tma_tensor_k(config, p),
                                    tma_tensor_v(config, p)};
    const char *found = paging_sm90_obstacle(config, p);
    if (found == NULL)
        found = mask_blocks_sm90_obstacle(config, problem);
    if (found == NULL)
        found = cuda_launch_obstacle(&cuda, config, problem, device);
    for (int i = 0; i < 3 && found == NULL; i++)
        found = tma_tensor_obstacle(&tensors[i]);
    return found != NULL ? found : o_obstacle(config, p);
}

/* ---- Selection ---- */

static int64_t block_time(const flash_config_t *config) {
    const bool masked = config->features & (FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW);
    return (int64_t)(config->B_r + (masked ? 0 : SM90_ROWS_AROUND_BLOCK)) * config->B_c;
}

/* Estimates the blocks of keys that a tile sees. In a window its keys begin and end anywhere, so
 * that n keys lie in 1 + (n - 1) / B_c blocks on average. */
static int64_t estimated_blocks(const flash_config_t *config, const flash_params_t *p) {
    const int64_t keys = problem_mean_keys(p);
    const int64_t queries = config->B_r >> schedule_sm90_pack_shift(config, p);
    if (p->window_left < 0 || p->window_right < 0)
        return (keys + config->B_c - 1) / config->B_c;
    return 1 + (keys + queries - 2) / config->B_c;
}

/* Estimates the time of the longest-working multiprocessor, in scores: blocks of keys are computed
 * whole. */
static int64_t estimated_time(const flash_config_t *config, const problem_t *problem,
                              const device_t *device) {
    const int64_t n = device->n_multiprocessors;
    const int64_t rounds = (schedule_sm90_tiles(config, &problem->params) + n - 1) / n;
    const int64_t blocks = estimated_blocks(config, &problem->params) + SM90_BLOCKS_AROUND_TILE;
    return rounds * blocks * block_time(config);
}

/* Estimates the time of many rows against many keys, whatever the problem's lengths. */
static int64_t time_at_length(const flash_config_t *config) {
    enum { ROWS = 1 << 20 };
    return ROWS * block_time(config) / ((int64_t)config->B_r * config->B_c);
}

/* Says whether rows with varlen have half as many tiles, since heads share those of short queries.
 */
static bool shared_tiles_pay(const flash_config_t *config, const problem_t *problem,
                             const device_t *device) {
    flash_config_t ragged = *config;
    ragged.features |= FLASH_FEATURE_VARLEN;
    return !sm90_has_varlen(config) &&
           2 * schedule_sm90_tiles(&ragged, &problem->params) <=
               schedule_sm90_tiles(config, &problem->params) &&
           obstacle(&ragged, problem, device) == NULL;
}

/* Says whether the row multiplies e4m3 in more columns than those of SM90_DECODE that would do. */
static bool is_wider_than_decode(const flash_config_t *config, const flash_params_t *p) {
    enum { DECODE_MAX_D_HEAD = 128 };
    return flash_multiplies_e4m3(config) && config->d_head > DECODE_MAX_D_HEAD &&
           p->d_head <= DECODE_MAX_D_HEAD && p->d_head_v <= DECODE_MAX_D_HEAD;
}

static bool row_declines(const flash_config_t *config, const problem_t *problem,
                         const device_t *device) {
    return is_wider_than_decode(config, &problem->params) ||
           shared_tiles_pay(config, problem, device);
}

static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const int32_t strategies = config->overlap + config->persistent + config->fixed_reference;
    return (family_rank_t){.without_strategies = -strategies,
                           .time = problem->batch_invariant
                                       ? time_at_length(config)
                                       : estimated_time(config, problem, device)};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .row_declines = row_declines,
                                    .part = FAMILY_FORWARD_PART,
                                    .cuda = &cuda,
                                    .calls = &sm90_forward_calls};

const family_t family_sm90 = {.facts = &family_facts_sm90,
                              .ops = {[FLASH_OP_FORWARD] = &forward,
                                      [FLASH_OP_BACKWARD_DQ] = &sm90_backward_dq,
                                      [FLASH_OP_BACKWARD_DKV] = &sm90_backward_dkv}};
