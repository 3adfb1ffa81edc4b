/*
 * How the rows of the SM80 family compare: the most strategies that always pay, then the least
 * estimated time.
 */
#include "select/families.h"

#include "kernels/sm80/sm80_kernel.h"

/* What the steps over K and V cost a block beside its rows of Q, in rows: 64 rows run at 0.82 of
 * the speed of 128 (docs/performance.md). */
enum { STEP_ROWS = 36 };

/* Of the longest-working multiprocessor, in rows of Q. */
static int64_t estimated_time(const flash_config_t *config, const problem_t *problem,
                              const device_t *device) {
    const int64_t n = device->n_multiprocessors;
    const int64_t blocks = sm80_grid_blocks(config, &problem->params);
    return (blocks + n - 1) / n * (config->B_r + STEP_ROWS);
}

/* Short sequences want few steps, long ones small ones: seen at d_head 256, where both are there.
 */
static int32_t step_preference(const flash_config_t *config, const problem_t *problem) {
    enum { LONG = 1024 };
    const bool is_short = !problem->batch_invariant && select_visible_keys(&problem->params) < LONG;
    return is_short ? -config->B_c : config->B_c;
}

family_rank_t select_rank_sm80(const flash_config_t *config, const problem_t *problem,
                               const device_t *device) {
    const int32_t strategies = config->async_copy + config->eager_load_blocks + config->swizzled +
                               config->optimized_softmax;
    return (family_rank_t){
        .without_strategies = -strategies,
        .time = problem->batch_invariant ? 0 : estimated_time(config, problem, device),
        .preference = step_preference(config, problem)};
}
