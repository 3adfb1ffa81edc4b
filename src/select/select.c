/*
 * Selection takes the first family with kernels that serve the problem (order.h), and compares
 * these: the smallest head dimensions first, then the fewest features beyond those needed, and the
 * family's own estimate.
 */
#include "select/select.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "config/words.h"
#include "core/status.h"
#include "select/order.h"
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
    const flash_config_t *config = &kernel->config;
    const int32_t extra = config->features & ~problem->features;
    const family_rank_t estimate = kernel_op(kernel)->rank(config, problem, device);
    const rank_t rank = {{config->d_head, config_d_head_v(config),
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

/* The rows that are looked for. */
typedef struct scope {
    family_part_t part;     /* FAMILY_NO_PART: rows of all families */
    bool without_declining; /* leave out rows that decline the problem */
} scope_t;

/* Says whether rows of the family may serve the problem. */
static bool may_serve(const family_place_t *place, const problem_t *problem, const device_t *device,
                      scope_t scope) {
    const family_t *family = place->family;
    const family_op_t *op = family->ops[problem->op];
    if (op == NULL || (scope.part != FAMILY_NO_PART && op->part != scope.part))
        return false;
    if (place->counts != NULL && !place->counts(device))
        return false;
    return family_lack(family, device) == NULL &&
           types_of_rows_serve(family->facts->rows[problem->op], problem);
}

static bool declines(const flash_kernel_t *kernel, const problem_t *problem,
                     const device_t *device) {
    const family_op_t *op = kernel_op(kernel);
    return op->declines != NULL && op->declines(&kernel->config, problem, device);
}

/* Rows are in the order of d_head. Those of a greater d_head than the best row so far need not be
 * asked whether they serve, which can take a while. */
static const flash_kernel_t *best_of_family(const family_t *family, scope_t scope,
                                            const problem_t *problem, const device_t *device) {
    const kernel_range_t rows = kernel_table_rows(family, problem->op, problem->dtype);
    const flash_kernel_t *best = NULL;
    rank_t best_rank = {{0}};
    for (const flash_kernel_t *kernel = rows.begin; kernel < rows.end; kernel++) {
        if (best != NULL && kernel->config.d_head > best->config.d_head)
            break;
        if (!select_fits(kernel, problem) ||
            (scope.without_declining && declines(kernel, problem, device)))
            continue;
        const rank_t rank = rank_row(kernel, problem, device);
        if ((best == NULL || ranks_before(&rank, &best_rank)) &&
            select_obstacle(kernel, problem, device) == NULL) {
            best = kernel;
            best_rank = rank;
        }
    }
    return best;
}

static const flash_kernel_t *best_in(scope_t scope, const problem_t *problem,
                                     const device_t *device) {
    for (int32_t i = 0; i < family_order_count; i++)
        if (may_serve(&family_order[i], problem, device, scope)) {
            const flash_kernel_t *best =
                best_of_family(family_order[i].family, scope, problem, device);
            if (best != NULL)
                return best;
        }
    return NULL;
}

/* If all rows that serve the part decline it, one of them is taken all the same. */
const flash_kernel_t *select_part(const problem_t *problem, const device_t *device,
                                  family_part_t part) {
    const flash_kernel_t *kernel = best_in((scope_t){part, true}, problem, device);
    return kernel != NULL ? kernel : best_in((scope_t){part, false}, problem, device);
}

static void give_reason(const flash_kernel_t *kernel, const problem_t *problem,
                        const device_t *device, char *reason) {
    const family_t *family = kernel->family;
    const family_op_t *op = kernel_op(kernel);
    const char *name = family->facts->name;
    const char *remark = family->remark == NULL ? "" : family->remark(problem, device);
    char types[TYPES_NAME_SIZE], parts[FAMILY_PARTS_SIZE] = "";
    types_name(problem, types);
    if (op->name_parts != NULL)
        op->name_parts(&kernel->config, problem, device, parts);
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

/* The types of Q and O that rows for a kind of device take with a type of K and V. */
typedef struct taken {
    type_pairs_t pairs;
    bool some;     /* there are such rows */
    bool problems; /* the problem's are among the pairs */
} taken_t;

static taken_t find_types(const problem_t *problem, const device_t *device) {
    taken_t taken = {.some = false};
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (kernel->config.op != problem->op || kernel->config.dtype != problem->dtype ||
            kernel->family->facts->on_cpu != device_is_cpu(device))
            continue;
        types_add(&taken.pairs, &kernel->types->pairs);
        taken.some = true;
        taken.problems = taken.problems || types_serve(kernel->types, problem);
    }
    return taken;
}

static flash_status_t refuse(const problem_t *problem, const device_t *device) {
    char types[TYPES_NAME_SIZE], pairs[TYPES_PAIRS_SIZE];
    char features[WORDS_FEATURES_SIZE], where[DEVICE_NAME_SIZE];
    const taken_t taken = find_types(problem, device);
    types_name_pairs(&taken.pairs, pairs);
    types_name(problem, types);
    words_name_features(problem->features, features);
    device_name(device, where);
    FLASH_REQUIRE(taken.problems || !taken.some, FLASH_ERROR_UNSUPPORTED,
                  "no kernel in this library serves dtype %s on %s: if K and V are %s, Q and O can "
                  "be: %s",
                  types, where, config_dtype_name(problem->dtype), pairs);
    return status_fail(FLASH_ERROR_UNSUPPORTED,
                       "no kernel in this library serves dtype %s, d_head %d, d_head_v %d, "
                       "features %s on %s (kernels in the table: %d)",
                       types, problem->params.d_head, problem->params.d_head_v, features, where,
                       kernel_table_count);
}

flash_status_t select_kernel(const problem_t *problem, const device_t *device,
                             const flash_kernel_t **kernel, char *reason) {
    *kernel = select_part(problem, device, FAMILY_NO_PART);
    if (*kernel == NULL)
        return refuse(problem, device);
    if (reason != NULL)
        give_reason(*kernel, problem, device, reason);
    return FLASH_SUCCESS;
}
