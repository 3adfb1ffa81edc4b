/*
 * This file describes the SM90_DECODE family to the host: attention of more rows (queries x query
 * heads of a group) than SM80_DECODE takes, and of too few for the SM90 family to fill the device.
 */
#include "core/int64.h"
#include "core/status.h"
#include "cuda/decode/plan_sm90_decode.h"
#include "cuda/decode/query_rows.h"
#include "cuda/family.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tma_tensor.h"
#include "cuda/tuning.h"
#include "kernels/sm90/decode_kernel.h"

#include <stddef.h>

enum { MMA_ROWS = 16, LOADING_WARPS = 4 };

/* ---- Rules, as in codegen/legality.py ---- */

static flash_status_t check(const flash_config_t *config) {
    const int32_t n_warps = LOADING_WARPS + config->B_r / MMA_ROWS;
    FLASH_REQUIRE(config->n_warps == n_warps, FLASH_ERROR_INVALID_CONFIG,
                  "n_warps is %d: %d with B_r %d, %d and one for each %d rows", config->n_warps,
                  n_warps, config->B_r, LOADING_WARPS, MMA_ROWS);
    FLASH_REQUIRE(!config->ping_pong || config->B_r >= 2 * SM90_WARPGROUP_ROWS,
                  FLASH_ERROR_INVALID_CONFIG,
                  "ping_pong is 1: it needs a B_r of %d or more, which is %d",
                  2 * SM90_WARPGROUP_ROWS, config->B_r);
    FLASH_REQUIRE(sm90_has_varlen(config), FLASH_ERROR_INVALID_CONFIG,
                  "features has no varlen: SM90_DECODE kernels need it");
    FLASH_REQUIRE(
        sm90_shared_bytes(config) <= SM90_SHARED_BYTES_MAX, FLASH_ERROR_INVALID_CONFIG,
        "d_head %d, d_head_v %d, B_r %d, B_c %d and n_stages %d take %d bytes of shared memory: at "
        "most %d",
        config->d_head, sm90_d_head_v(config), config->B_r, config->B_c, config->n_stages,
        sm90_shared_bytes(config), SM90_SHARED_BYTES_MAX);
    return FLASH_SUCCESS;
}

/* ---- Devices and problems ---- */

static const char *lacks(const device_t *device) {
    return device->compute_capability == 90
               ? NULL
               : "SM90_DECODE kernels need compute capability 9.0, no other";
}

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm90_block_threads(config), sm90_shared_bytes(config), 0};
}

static const cuda_family_t cuda = {
    .block = block, .tiles = plan_decode_tiles, .plan = plan_sm90_decode};

static const char *tma_obstacle(const flash_config_t *config, const flash_params_t *p) {
    const tma_tensor_t k = tma_tensor_k(config, p), v = tma_tensor_v(config, p);
    const char *of_k = tma_tensor_obstacle(&k);
    return of_k != NULL ? of_k : tma_tensor_obstacle(&v);
}

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    const char *of_pages = paging_sm90_obstacle(config, p);
    if (of_pages != NULL)
        return of_pages;
    if (problem->batch_invariant && p->cu_seqlens_q != NULL)
        return "with FLASH_FLAG_BATCH_INVARIANT the queries of other sequences must not decide "
               "between decode and other kernels";
    if (!query_rows_aligned(p))
        return "decode kernels need 16-byte aligned rows of Q, K and V";
    const char *of_tma = tma_obstacle(config, p);
    return of_tma != NULL ? of_tma : plan_decode_obstacle(&cuda, config, problem, device);
}

/* ---- Selection ---- */

/* A row that serves both head dimensions computes so many columns of S and O for a key. */
static int32_t columns_of_decode_row(const flash_params_t *p) {
    static const int32_t sizes[] = {64, 128, 256};
    for (int i = 0; i < 3; i++)
        if (sizes[i] >= p->d_head && sizes[i] >= p->d_head_v)
            return 2 * sizes[i];
    return 2 * 256;
}

/* Returns the columns of K and V in the row of the SM90 family that serves a problem. */
static int32_t columns_of_forward_row(const flash_params_t *p) {
    static const int32_t pairs[][2] = {{64, 64},   {96, 96},   {128, 128},
                                       {192, 128}, {192, 192}, {256, 256}};
    for (int i = 0; i < 6; i++)
        if (pairs[i][0] >= p->d_head && pairs[i][1] >= p->d_head_v)
            return pairs[i][0] + pairs[i][1];
    return 2 * 256;
}

/* Declines unless enough of the time is saved by estimate. */
static bool declines(const flash_config_t *config, const problem_t *problem,
                     const device_t *device) {
    const flash_params_t *p = &problem->params;
    (void)config;
    const int64_t own = min64(estimate_sm90_decode(64, problem, device),
                              estimate_sm90_decode(128, problem, device));
    const int64_t forward = estimate_sm90_forward(problem, device);
    return own * columns_of_decode_row(p) * 5 >=
           forward * columns_of_forward_row(p) * SM90_DECODE_MAX_FIFTHS;
}

static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    return (family_rank_t){.time = estimate_sm90_decode(config->B_r, problem, device),
                           .preference = config->B_r};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .declines = declines,
                                    .cuda = &cuda,
                                    .calls = &sm90_decode_calls};

const family_t family_sm90_decode = {
    .facts = &family_facts_sm90_decode, .lacks = lacks, .ops = {[FLASH_OP_FORWARD] = &forward}};
