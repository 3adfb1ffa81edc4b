/*
 * SM80 heuristic: among the rows that serve, the smallest head dimension, then the fewest features
 * beyond those needed, then the most strategies that always pay, then the least estimated time.
 */
#include "select.h"

#include "kernel_table.h"
#include "sm80/sm80_kernel.h"

#include <stdio.h>

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

/* Keys that a row of Q sees, about. */
static int64_t mean_visible_keys(const flash_params_t *p) {
    const bool triangular = p->window_right >= 0 && p->window_left < 0;
    const int64_t window = (int64_t)p->window_left + p->window_right + 1;
    if (p->window_left >= 0 && p->window_right >= 0 && window < p->seqlen_k)
        return window;
    return triangular ? p->seqlen_k / 2 : p->seqlen_k;
}

/* Short sequences want few steps, long ones small ones: seen at d_head 256, where both are there.
 */
static int32_t step_preference(const flash_config_t *config, const problem_t *problem) {
    enum { LONG = 1024 };
    const bool is_short = !problem->batch_invariant && mean_visible_keys(&problem->params) < LONG;
    return is_short ? -config->B_c : config->B_c;
}

/* Fields by which rows are compared, the most important first; less is better. */
enum { N_RANKS = 5 };
typedef struct rank {
    int64_t fields[N_RANKS];
} rank_t;

static rank_t rank_row(const flash_config_t *config, const problem_t *problem,
                       const device_t *device) {
    const int32_t extra = config->features & ~problem->features;
    const int32_t strategies = config->async_copy + config->eager_load_blocks + config->swizzled +
                               config->optimized_softmax;
    const rank_t rank = {{config->d_head, __builtin_popcount((unsigned)extra), -strategies,
                          problem->batch_invariant ? 0 : estimated_time(config, problem, device),
                          step_preference(config, problem)}};
    return rank;
}

static bool ranks_before(const rank_t *a, const rank_t *b) {
    for (int i = 0; i < N_RANKS; i++)
        if (a->fields[i] != b->fields[i])
            return a->fields[i] < b->fields[i];
    return false;
}

const flash_kernel_t *select_sm80(const problem_t *problem, const device_t *device,
                                  char reason[SELECT_REASON_SIZE]) {
    const flash_kernel_t *best = NULL;
    rank_t best_rank = {{0}};
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (!select_serves(kernel, problem, device))
            continue;
        const rank_t rank = rank_row(&kernel->config, problem, device);
        if (best == NULL || ranks_before(&rank, &best_rank)) {
            best = kernel;
            best_rank = rank;
        }
    }
    if (best != NULL)
        snprintf(reason, SELECT_REASON_SIZE,
                 "the least estimated time on %d multiprocessors among the rows of d_head %d",
                 device->n_multiprocessors, best->config.d_head);
    return best;
}
