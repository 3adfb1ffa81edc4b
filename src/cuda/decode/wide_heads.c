#include "cuda/decode/wide_heads.h"

#include "config/kernel_table.h"
#include "cuda/decode/plan_rounds.h"
#include "cuda/tuning.h"

#include <stddef.h>

/* Returns the keys of a share with FLASH_FLAG_BATCH_INVARIANT. What other sequences have must
 * not decide it: those of a ragged batch are not cut, nor those of several tiles, whose partial
 * results would take gigabytes. */
static int32_t invariant_keys(const flash_config_t *config, const flash_params_t *p) {
    const bool is_one_tile = (int64_t)p->seqlen_q * p->group <= config->B_r;
    return p->cu_seqlens_q == NULL && is_one_tile ? ROUNDS_INVARIANT_KEYS : INT32_MAX;
}

decode_plan_t plan_wide_heads(const flash_config_t *config, const problem_t *problem,
                              const device_t *device) {
    const round_times_t times = {.of_unit = WIDE_TIME_OF_UNIT,
                                 .around_block = WIDE_TIME_AROUND_BLOCK,
                                 .of_merge = WIDE_TIME_OF_MERGE,
                                 .invariant_keys = invariant_keys(config, &problem->params)};
    return plan_rounds(config, problem, device, &times);
}

bool serves_heads(const family_t *family, const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const kernel_shapes_t shapes = kernel_table_shapes(family, problem->op, problem->dtype);
    return kernel_table_least_shape(shapes, p->d_head, p->d_head_v) != NULL;
}
