/*
 * This file describes the SM80_DECODE family to the host: attention of few rows (queries x query
 * heads of a group) over many keys, which takes as long as reading K and V.
 */
#include "config/rules.h"
#include "core/int64.h"
#include "cuda/decode/plan_decode.h"
#include "cuda/decode/query_rows.h"
#include "cuda/family.h"
#include "cuda/tuning.h"
#include "kernels/common/sequence.h"
#include "kernels/sm80/decode_kernel.h"

#include <stddef.h>

DEFINE_CHECK(SM80_DECODE_FWD_RULES)

/* ---- Devices and problems ---- */

static cuda_block_t block(const flash_config_t *config) {
    return (cuda_block_t){decode_block_threads(config), decode_shared_bytes(config),
                          DECODE_STATIC_SHARED_BYTES};
}

static const cuda_family_t cuda = {
    .block = block, .tiles = plan_decode_tiles, .plan = plan_sm80_decode};

/* The kernels count the bytes between keys in 32 bits. */
static bool close_keys(const flash_strides_t *stride) {
    return stride->seq <= INT32_MAX / 2;
}

static bool has_too_many_rows(const flash_params_t *p) {
    return (int64_t)p->seqlen_q * p->group > SM80_DECODE_MAX_ROWS;
}

static const char *obstacle(const flash_config_t *config, const problem_t *problem,
                            const device_t *device) {
    const flash_params_t *p = &problem->params;
    if ((config->features & FLASH_FEATURE_PAGED) != 0 && p->pages.page_size == 0)
        return "decode kernels with paged read K and V only in pages";
    if (has_too_many_rows(p))
        return "decode kernels take at most 32 rows (queries x query heads of a K/V head)";
    if (problem->batch_invariant && p->cu_seqlens_q != NULL && flash_has_whole_batch(p))
        return "with FLASH_FLAG_BATCH_INVARIANT the queries of other sequences must not decide "
               "between decode and other kernels";
    const int32_t kv_bytes = dtype_size(config->dtype);
    if (!query_rows_aligned(p) || !rows_aligned(p->k, &p->k_stride, p->d_head, kv_bytes) ||
        !rows_aligned(p->v, &p->v_stride, p->d_head_v, kv_bytes))
        return "decode kernels need 16-byte aligned rows of Q, K and V";
    if (!close_keys(&p->k_stride) || !close_keys(&p->v_stride))
        return "decode kernels need strides of tokens below 2^31 bytes";
    return plan_decode_obstacle(&cuda, config, problem, device);
}

/* ---- Selection ---- */

static bool declines(const problem_t *problem, const device_t *device) {
    (void)device;
    return has_too_many_rows(&problem->params);
}

/* Each tile of rows reads all of K and V, so the fewest tiles come first, then the smallest. */
static family_rank_t rank(const flash_config_t *config, const problem_t *problem,
                          const device_t *device) {
    const int64_t rows = (int64_t)problem->params.seqlen_q * problem->params.group;
    const int64_t row_tiles = divide_up(rows, config->B_r);
    (void)device;
    return (family_rank_t){.time = row_tiles, .preference = config->B_r, .passes = row_tiles};
}

static const family_op_t forward = {.check = check,
                                    .obstacle = obstacle,
                                    .rank = rank,
                                    .declines = declines,
                                    .part = FAMILY_DECODE_PART,
                                    .cuda = &cuda,
                                    .calls = &sm80_decode_calls};

const family_t family_sm80_decode = {.facts = &family_facts_sm80_decode,
                                     .ops = {[FLASH_OP_FORWARD] = &forward}};
