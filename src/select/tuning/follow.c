/*
 * Selection follows measured results where they are better than its estimates.
 */
#include "select/tuning/follow.h"

#include "config/kernel_table.h"
#include "core/problem.h"
#include "select/serves.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

tuning_key_t tuning_key(const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    return (tuning_key_t){{
        [TUNING_COMPUTE_CAPABILITY] = device->compute_capability,
        [TUNING_MULTIPROCESSORS] = device->n_multiprocessors,
        [TUNING_OP] = problem->op,
        [TUNING_DTYPE] = problem->dtype,
        [TUNING_D_HEAD] = p->d_head,
        [TUNING_FEATURES] = problem->features,
        [TUNING_LOG2_Q] = tuning_size_class(p->seqlen_q),
        [TUNING_LOG2_K] = tuning_size_class(problem_most_keys(p)),
        [TUNING_LOG2_HEADS] = tuning_size_class((int64_t)p->batch * p->n_heads),
    }};
}

/* The results of one key. */
typedef struct range {
    const tuning_row_t *rows;
    int32_t count;
} range_t;

static range_t find(const tuning_row_t *rows, int32_t count, const tuning_key_t *key) {
    int32_t first = 0, end = count;
    while (first < end) {
        const int32_t middle = first + (end - first) / 2;
        if (tuning_compare_keys(&rows[middle].key, key) < 0)
            first = middle + 1;
        else
            end = middle;
    }
    while (end < count && tuning_compare_keys(&rows[end].key, key) == 0)
        end++;
    return (range_t){rows + first, end - first};
}

/* A family whose rows of these types have no results was not measured, and may be faster than all
 * that were. */
static bool was_measured(range_t range, const flash_kernel_t *estimate) {
    for (int32_t i = 0; i < range.count; i++)
        if (range.rows[i].kernel->types == estimate->types)
            return true;
    return false;
}

/* Says whether a kernel of the estimate's family makes more passes over K and V than the estimate.
 * Such a kernel was measured with fewer query heads per K/V head, which the key does not hold. */
static bool reads_more(const flash_kernel_t *kernel, const flash_kernel_t *estimate,
                       const problem_t *problem, const device_t *device) {
    const family_op_t *op = kernel_op(estimate);
    return kernel_op(kernel) == op && op->rank(&kernel->config, problem, device).passes >
                                          op->rank(&estimate->config, problem, device).passes;
}

/* Returns the fastest result whose kernel serves this problem, with no more passes over K and V
 * than the estimate; NULL if there is none. */
static const tuning_row_t *fastest(range_t range, const problem_t *problem, const device_t *device,
                                   const flash_kernel_t *estimate) {
    for (int32_t i = 0; i < range.count; i++)
        if (select_serves(range.rows[i].kernel, problem, device) &&
            !reads_more(range.rows[i].kernel, estimate, problem, device))
            return &range.rows[i];
    return NULL;
}

void tuning_follow(const tuning_results_t *given, const problem_t *problem, const device_t *device,
                   const flash_kernel_t **kernel, char *reason) {
    if (device_is_cpu(device) || problem->batch_invariant || problem_has_other_d_head_v(problem))
        return;
    const tuning_key_t key = tuning_key(problem, device);
    range_t range = {NULL, 0};
    if (given != NULL)
        range = find(given->rows, given->count, &key);
    const bool built_in = range.count == 0 && !(given != NULL && given->alone);
    if (built_in)
        range = find(tuning_table, tuning_table_count, &key);
    const tuning_row_t *row = fastest(range, problem, device, *kernel);
    if (row == NULL || !was_measured(range, *kernel))
        return;
    *kernel = row->kernel;
    if (reason != NULL)
        snprintf(reason, SELECT_REASON_SIZE,
                 "measured: %" PRId64 " ns, the fastest of %d %s for this size on compute "
                 "capability %d with %d multiprocessors",
                 row->nanoseconds, range.count, built_in ? "built-in results" : "given results",
                 device->compute_capability, device->n_multiprocessors);
}
