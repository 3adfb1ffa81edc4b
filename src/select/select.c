/*
 * Selection takes the kernels that serve the problem and compares them: the family with the highest
 * priority on the device first, then the smallest head dimension, the fewest features beyond those
 * needed, and the family's own estimate.
 */
#include "select/select.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "config/words.h"
#include "core/status.h"
#include "select/serves.h"
#include "select/types.h"

#include <stddef.h>
#include <stdio.h>

/* Rows are compared by these fields, the most important first; less is better. */
enum { N_RANKS = 6 };
typedef struct rank {
    int64_t fields[N_RANKS];
} rank_t;

static rank_t rank_row(const flash_kernel_t *kernel, const problem_t *problem,
                       const device_t *device) {
    const family_t *family = kernel->family;
    const flash_config_t *config = &kernel->config;
    const int32_t extra = config->features & ~problem->features;
    const family_rank_t estimate = family->rank(config, problem, device);
    const rank_t rank = {{-(int64_t)family->priority(device), config->d_head,
                          __builtin_popcount((unsigned)extra), estimate.without_strategies,
                          estimate.time, estimate.preference}};
    return rank;
}

static bool ranks_before(const rank_t *a, const rank_t *b) {
    for (int i = 0; i < N_RANKS; i++)
        if (a->fields[i] != b->fields[i])
            return a->fields[i] < b->fields[i];
    return false;
}

typedef struct scope {
    family_part_t part;     /* FAMILY_NO_PART: rows of all families */
    bool without_declining; /* leave out rows that decline the problem */
} scope_t;

static bool is_wanted(const flash_kernel_t *kernel, const problem_t *problem,
                      const device_t *device, scope_t scope) {
    const family_t *family = kernel->family;
    if (scope.part != FAMILY_NO_PART && family->part != scope.part)
        return false;
    return !scope.without_declining || family->declines == NULL ||
           !family->declines(&kernel->config, problem, device);
}

/* Says whether a row ranks after the best one so far by the first two fields. That saves asking
 * whether it serves the problem, which can take a while. */
static bool comes_later(const flash_kernel_t *kernel, const flash_kernel_t *best,
                        const device_t *device) {
    if (best == NULL)
        return false;
    const int32_t priority = kernel->family->priority(device);
    const int32_t best_priority = best->family->priority(device);
    return priority != best_priority ? priority < best_priority
                                     : kernel->config.d_head > best->config.d_head;
}

static const flash_kernel_t *best_in(scope_t scope, const problem_t *problem,
                                     const device_t *device) {
    const flash_kernel_t *best = NULL;
    rank_t best_rank = {{0}};
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (comes_later(kernel, best, device) || !is_wanted(kernel, problem, device, scope) ||
            !select_serves(kernel, problem, device))
            continue;
        const rank_t rank = rank_row(kernel, problem, device);
        if (best == NULL || ranks_before(&rank, &best_rank)) {
            best = kernel;
            best_rank = rank;
        }
    }
    return best;
}

/* If all rows that serve the part decline it, one of them is taken all the same. */
const flash_kernel_t *select_part(const problem_t *problem, const device_t *device,
                                  family_part_t part) {
    const flash_kernel_t *kernel = best_in((scope_t){part, true}, problem, device);
    return kernel != NULL ? kernel : best_in((scope_t){part, false}, problem, device);
}

static void give_reason(const flash_kernel_t *kernel, const problem_t *problem,
                        const device_t *device, char reason[SELECT_REASON_SIZE]) {
    const family_t *family = kernel->family;
    const char *name = family->facts->name;
    const char *remark = family->remark == NULL ? "" : family->remark(problem, device);
    char types[TYPES_NAME_SIZE], parts[FAMILY_PARTS_SIZE] = "";
    types_name(problem, types);
    if (family->name_parts != NULL)
        family->name_parts(&kernel->config, problem, device, parts);
    if (device_is_cpu(device))
        snprintf(reason, SELECT_REASON_SIZE,
                 "%s is the fastest family in this library that the processor has for %s%s", name,
                 types, remark);
    else
        snprintf(
            reason, SELECT_REASON_SIZE,
            "the least estimated time on %d multiprocessors among the %s rows of d_head %d%s%s",
            device->n_multiprocessors, name, kernel->config.d_head, remark, parts);
}

/* Finds the types of Q and O that some kernel for this kind of device takes with the problem's type
 * of K and V. *served says whether those of the problem are among them. */
static types_pairs_t find_types(const problem_t *problem, const device_t *device, bool *served) {
    types_pairs_t pairs = {0};
    *served = false;
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        const family_facts_t *facts = kernel->family->facts;
        if (kernel->config.dtype != problem->dtype ||
            facts->layout->on_cpu != device_is_cpu(device))
            continue;
        types_add(&pairs, facts, problem->dtype);
        *served = *served || types_mismatch(facts, problem) == NULL;
    }
    return pairs;
}

static flash_status_t refuse(const problem_t *problem, const device_t *device) {
    char types[TYPES_NAME_SIZE], pairs[TYPES_PAIRS_SIZE];
    char features[WORDS_FEATURES_SIZE], where[DEVICE_NAME_SIZE];
    bool served;
    const types_pairs_t taken = find_types(problem, device, &served);
    types_name_pairs(taken, pairs);
    types_name(problem, types);
    words_name_features(problem->features, features);
    device_name(device, where);
    FLASH_REQUIRE(served || taken.bits == 0, FLASH_ERROR_UNSUPPORTED,
                  "no kernel in this library serves dtype %s on %s: if K and V are %s, Q and O can "
                  "be: %s",
                  types, where, config_dtype_name(problem->dtype), pairs);
    return status_fail(FLASH_ERROR_UNSUPPORTED,
                       "no kernel in this library serves dtype %s, d_head %d, features %s on %s "
                       "(kernels in the table: %d)",
                       types, problem->params.d_head, features, where, kernel_table_count);
}

flash_status_t select_kernel(const problem_t *problem, const device_t *device,
                             const flash_kernel_t **kernel, char reason[SELECT_REASON_SIZE]) {
    *kernel = select_part(problem, device, FAMILY_NO_PART);
    if (*kernel == NULL)
        return refuse(problem, device);
    give_reason(*kernel, problem, device, reason);
    return FLASH_SUCCESS;
}
