/*
 * CUDA heuristic: the newest family that serves; among its rows the smallest head dimension, then
 * the fewest features beyond those needed, then what the family's own estimate says.
 */
#include "config/config.h"
#include "config/kernel_table.h"
#include "select/select.h"
#include "select/families.h"

#include <stdio.h>

/* Fields by which rows are compared, the most important first; less is better. */
enum { N_RANKS = 6 };
typedef struct rank {
    int64_t fields[N_RANKS];
} rank_t;

static rank_t rank_row(const flash_config_t *config, const problem_t *problem,
                       const device_t *device) {
    const int32_t extra = config->features & ~problem->features;
    const family_rank_t own = config->arch == FLASH_ARCH_SM90
                                  ? select_rank_sm90(config, problem, device)
                                  : select_rank_sm80(config, problem, device);
    const rank_t rank = {{-config->arch, config->d_head, __builtin_popcount((unsigned)extra),
                          own.without_strategies, own.time, own.preference}};
    return rank;
}

static bool ranks_before(const rank_t *a, const rank_t *b) {
    for (int i = 0; i < N_RANKS; i++)
        if (a->fields[i] != b->fields[i])
            return a->fields[i] < b->fields[i];
    return false;
}

const flash_kernel_t *select_cuda(const problem_t *problem, const device_t *device,
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
                 "the least estimated time on %d multiprocessors among the %s rows of d_head %d",
                 device->n_multiprocessors, config_arch_name(best->config.arch),
                 best->config.d_head);
    return best;
}
