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

/* Rows of a family are compared by these, the most important first; less is better. */
typedef struct rank {
    int32_t d_head;
    int32_t d_head_v;
    int32_t extra_features;
    family_rank_t estimate; /* which takes longest to find */
} rank_t;

static int32_t count_bits(int32_t features) {
    int32_t count = 0;
    for (uint32_t left = (uint32_t)features; left != 0; left &= left - 1)
        count++;
    return count;
}

/* Returns the rank of a row without the estimate. */
static rank_t rank_by_fields(const flash_config_t *config, const problem_t *problem) {
    return (rank_t){.d_head = config->d_head,
                    .d_head_v = config_d_head_v(config),
                    .extra_features = count_bits(config->features & ~problem->features)};
}

static int compare(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

static int compare_fields(const rank_t *a, const rank_t *b) {
    if (a->d_head != b->d_head)
        return compare(a->d_head, b->d_head);
    if (a->d_head_v != b->d_head_v)
        return compare(a->d_head_v, b->d_head_v);
    return compare(a->extra_features, b->extra_features);
}

static int compare_estimates(const family_rank_t *a, const family_rank_t *b) {
    if (a->without_strategies != b->without_strategies)
        return compare(a->without_strategies, b->without_strategies);
    if (a->time != b->time)
        return compare(a->time, b->time);
    return compare(a->preference, b->preference);
}

/* The rows that are looked for. */
typedef struct scope {
    family_part_t part;     /* FAMILY_NO_PART: rows of all families */
    bool without_declining; /* leave out rows that decline the problem */
} scope_t;

/* Says whether rows of the family may serve the problem, and should. */
static bool is_candidate(const family_place_t *place, const problem_t *problem,
                         const device_t *device, scope_t scope) {
    const family_t *family = place->family;
    const family_op_t *op = family->ops[problem->op];
    if (op == NULL || (scope.part != FAMILY_NO_PART && op->part != scope.part))
        return false;
    if (place->applies != NULL && !place->applies(device))
        return false;
    if (family_lack(family, device) != NULL ||
        !types_of_rows_serve(family->facts->rows[problem->op], problem))
        return false;
    return !scope.without_declining || op->declines == NULL || !op->declines(problem, device);
}

static bool row_declines(const flash_kernel_t *kernel, const problem_t *problem,
                         const device_t *device) {
    const family_op_t *op = kernel_op(kernel);
    return op->row_declines != NULL && op->row_declines(&kernel->config, problem, device);
}

/* The best row so far; kernel: NULL if there is none. */
typedef struct best {
    const flash_kernel_t *kernel;
    rank_t rank;
} best_t;

/* Takes a row that fits if it ranks before the best one, and nothing stands in its way. */
static void consider(const flash_kernel_t *kernel, const problem_t *problem, const device_t *device,
                     best_t *best) {
    rank_t rank = rank_by_fields(&kernel->config, problem);
    const int order = best->kernel == NULL ? -1 : compare_fields(&rank, &best->rank);
    if (order > 0)
        return;
    rank.estimate = kernel_op(kernel)->rank(&kernel->config, problem, device);
    if (order == 0 && compare_estimates(&rank.estimate, &best->rank.estimate) >= 0)
        return;
    if (select_obstacle(kernel, problem, device) == NULL)
        *best = (best_t){kernel, rank};
}

/* Rows are in the order of d_head, so that all behind one of a greater d_head rank behind it. */
static const flash_kernel_t *best_of_family(const family_t *family, scope_t scope,
                                            const problem_t *problem, const device_t *device) {
    const kernel_range_t rows = kernel_table_rows(family, problem->op, problem->dtype);
    best_t best = {.kernel = NULL};
    for (const flash_kernel_t *kernel = rows.begin; kernel < rows.end; kernel++) {
        if (best.kernel != NULL && kernel->config.d_head > best.rank.d_head)
            break;
        if (select_fits(kernel, problem) &&
            !(scope.without_declining && row_declines(kernel, problem, device)))
            consider(kernel, problem, device, &best);
    }
    return best.kernel;
}

static const flash_kernel_t *best_in(scope_t scope, const problem_t *problem,
                                     const device_t *device) {
    for (int32_t i = 0; i < family_order_count; i++)
        if (is_candidate(&family_order[i], problem, device, scope)) {
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
    bool of_operation; /* there are rows of the problem's operation */
    bool some;         /* and of its type of K and V */
    bool problems;     /* the problem's are among the pairs */
} taken_t;

static taken_t find_types(const problem_t *problem, const device_t *device) {
    taken_t taken = {.some = false};
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (kernel->config.op != problem->op ||
            kernel->family->facts->on_cpu != device_is_cpu(device))
            continue;
        taken.of_operation = true;
        if (kernel->config.dtype != problem->dtype)
            continue;
        types_add(&taken.pairs, &kernel->types->pairs);
        taken.some = true;
        taken.problems = taken.problems || types_serve(kernel->types, problem);
    }
    return taken;
}

/* Returns what stands in the way of the family's rows that have all that the problem needs; NULL if
 * there are none. */
static const char *obstacle_of_family(const family_t *family, const problem_t *problem,
                                      const device_t *device) {
    const kernel_range_t rows = kernel_table_rows(family, problem->op, problem->dtype);
    const char *why_not = NULL;
    for (const flash_kernel_t *kernel = rows.begin; kernel < rows.end && why_not == NULL; kernel++)
        if (select_fits(kernel, problem))
            why_not = select_obstacle(kernel, problem, device);
    return why_not;
}

/* Writes which family would serve the problem, were it not for an obstacle; nothing if none would.
 * Families for all problems come last in the order, and are of most interest. */
static void name_obstacle(const problem_t *problem, const device_t *device, char *text) {
    text[0] = '\0';
    for (int32_t i = family_order_count - 1; i >= 0 && text[0] == '\0'; i--) {
        const family_t *family = family_order[i].family;
        if (!is_candidate(&family_order[i], problem, device, (scope_t){FAMILY_NO_PART, false}))
            continue;
        const char *why_not = obstacle_of_family(family, problem, device);
        if (why_not != NULL)
            snprintf(text, SELECT_REASON_SIZE, "; %s rows would, but %s", family->facts->name,
                     why_not);
    }
}

static flash_status_t refuse(const problem_t *problem, const device_t *device) {
    char obstacle[SELECT_REASON_SIZE];
    char types[TYPES_NAME_SIZE], pairs[TYPES_PAIRS_SIZE];
    char features[WORDS_FEATURES_SIZE], where[DEVICE_NAME_SIZE];
    const taken_t taken = find_types(problem, device);
    types_name_pairs(&taken.pairs, pairs);
    types_name(problem, types);
    words_name_features(problem->features, features);
    device_name(device, where);
    FLASH_REQUIRE(taken.of_operation || problem->op == FLASH_OP_FORWARD, FLASH_ERROR_UNSUPPORTED,
                  "no kernel in this library computes gradients (%s) on %s", words_op(problem->op),
                  where);
    FLASH_REQUIRE(taken.problems || !taken.some, FLASH_ERROR_UNSUPPORTED,
                  "no kernel in this library serves dtype %s on %s: if K and V are %s, Q and O can "
                  "be: %s",
                  types, where, config_dtype_name(problem->dtype), pairs);
    name_obstacle(problem, device, obstacle);
    return status_fail(FLASH_ERROR_UNSUPPORTED,
                       "no kernel in this library serves dtype %s, d_head %d, d_head_v %d, "
                       "features %s on %s (kernels in the table: %d)%s",
                       types, problem->params.d_head, problem->params.d_head_v, features, where,
                       kernel_table_count, obstacle);
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
