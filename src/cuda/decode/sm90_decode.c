/*
 * This file describes the SM90_DECODE family to the host: attention of more rows (queries x query
 * heads of a group) than SM80_DECODE takes, and of too few for the SM90 family to fill the device.
 */
#include "config/kernel_table.h"
#include "config/rules.h"
#include "core/int64.h"
#include "cuda/decode/plan_sm90_decode.h"
#include "cuda/decode/query_rows.h"
#include "cuda/family.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tma_tensor.h"
#include "cuda/tuning.h"
#include "kernels/sm90/decode_kernel.h"

#include <stddef.h>

DEFINE_CHECK(SM90_DECODE_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){sm90_block_threads(config), sm90_shared_bytes(config), 0};
}

static const cuda_family_t cuda = {
    .block = block, .tiles = plan_decode_tiles, .plan = plan_sm90_decode};

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
    const char *of_tma = tma_tensor_kv_obstacle(config, p);
    return of_tma != NULL ? of_tma : plan_decode_obstacle(&cuda, config, problem, device);
}

/* ---- Selection ---- */

/* Returns the columns of S and O that a row computes for a key, whatever those of the problem. */
static int32_t columns_of(const kernel_shape_t *shape) {
    return shape->d_head + shape->d_head_v;
}

/* Says whether no shape before this one has the same B_r. */
static bool is_first_of_tile(kernel_shapes_t shapes, const kernel_shape_t *shape) {
    for (const kernel_shape_t *other = shapes.begin; other < shape; other++)
        if (other->B_r == shape->B_r)
            return false;
    return true;
}

/* Estimates the time of the best tile among those of the family's rows. Rows of d_head 256 have the
 * smaller tile alone, and are estimated like the others. */
static int64_t least_time(kernel_shapes_t shapes, const problem_t *problem,
                          const device_t *device) {
    int64_t least = INT64_MAX;
    for (const kernel_shape_t *shape = shapes.begin; shape < shapes.end; shape++)
        if (is_first_of_tile(shapes, shape))
            least = min64(least, estimate_sm90_decode(shape->B_r, problem, device));
    return least;
}

/* Declines unless enough of the time is saved by estimate. Estimates leave columns out. */
static bool declines(const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const kernel_shapes_t shapes =
        kernel_table_shapes(&family_sm90_decode, problem->op, problem->dtype);
    const kernel_shape_t *own = kernel_table_least_shape(shapes, p->d_head, p->d_head_v);
    const kernel_shape_t *forward = kernel_table_least_shape(
        kernel_table_shapes(&family_sm90, problem->op, problem->dtype), p->d_head, p->d_head_v);
    if (own == NULL || forward == NULL)
        return own == NULL;
    return least_time(shapes, problem, device) * columns_of(own) * 5 >=
           estimate_sm90_forward(forward->B_r, problem, device) * columns_of(forward) *
               SM90_DECODE_MAX_FIFTHS;
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

const family_t family_sm90_decode = {.facts = &family_facts_sm90_decode,
                                     .ops = {[FLASH_OP_FORWARD] = &forward}};
