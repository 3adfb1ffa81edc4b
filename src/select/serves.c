/*
 * This file says whether a kernel serves a problem on a device.
 */
#include "select/serves.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "config/words.h"
#include "core/status.h"
#include "select/types.h"

#include <stddef.h>

/* Some families have rows with d_head 0, which serve every head dimension, and other rows for one
 * head dimension each. Rows of other families pad smaller heads. */
static bool serves_head(const flash_kernel_t *kernel, int32_t of_row, int32_t of_problem) {
    if (kernel->facts->layout->any_d_head)
        return of_row == 0 || of_row == of_problem;
    return of_row >= of_problem;
}

static bool serves_d_head(const flash_kernel_t *kernel, const flash_params_t *p) {
    return serves_head(kernel, kernel->config.d_head, p->d_head);
}

static bool serves_d_head_v(const flash_kernel_t *kernel, const flash_params_t *p) {
    return serves_head(kernel, config_d_head_v(&kernel->config), p->d_head_v);
}

static bool serves_features(const flash_kernel_t *kernel, int32_t features) {
    return (features & ~kernel->config.features) == 0;
}

/* Returns the field by which a kernel of the problem's operation does not fit; NULL if it fits. */
static const char *mismatch(const flash_kernel_t *kernel, const problem_t *problem) {
    const char *of_types = types_mismatch(kernel->types, problem);
    if (of_types != NULL)
        return of_types;
    if (!serves_d_head(kernel, &problem->params))
        return "d_head";
    if (!serves_d_head_v(kernel, &problem->params))
        return "d_head_v";
    return serves_features(kernel, problem->features) ? NULL : "features";
}

bool select_fits(const flash_kernel_t *kernel, const problem_t *problem) {
    return serves_d_head(kernel, &problem->params) && serves_d_head_v(kernel, &problem->params) &&
           serves_features(kernel, problem->features) && types_serve(kernel->types, problem);
}

const char *select_obstacle(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    const family_op_t *op = kernel_op(kernel);
    return op->obstacle == NULL ? NULL : op->obstacle(&kernel->config, problem, device);
}

/* Returns why the device cannot run the kernel at all, or not for this problem; NULL if it can. */
static const char *obstacle(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    const char *lack = family_lack(kernel->family, device);
    return lack != NULL ? lack : select_obstacle(kernel, problem, device);
}

bool select_serves(const flash_kernel_t *kernel, const problem_t *problem, const device_t *device) {
    return kernel->config.op == problem->op && mismatch(kernel, problem) == NULL &&
           obstacle(kernel, problem, device) == NULL;
}

static const char *op_name(int32_t op) {
    const char *word = words_op(op);
    return word != NULL ? word : "unknown";
}

static flash_status_t refuse_op(const flash_kernel_t *kernel, const problem_t *problem) {
    return status_fail(FLASH_ERROR_UNSUPPORTED,
                       "%s does not serve this problem: op. The kernel computes %s, the call %s",
                       kernel->name, op_name(kernel->config.op), op_name(problem->op));
}

static flash_status_t refuse_mismatch(const flash_kernel_t *kernel, const problem_t *problem,
                                      const char *field) {
    const flash_config_t *c = &kernel->config;
    char types[TYPES_NAME_SIZE], pairs[TYPES_PAIRS_SIZE];
    char has[WORDS_FEATURES_SIZE], needs[WORDS_FEATURES_SIZE];
    types_name(problem, types);
    types_name_pairs(&kernel->types->pairs, pairs);
    words_name_features(c->features, has);
    words_name_features(problem->features, needs);
    return status_fail(FLASH_ERROR_UNSUPPORTED,
                       "%s does not serve this problem: %s. The kernel has dtype %s (with Q and O "
                       "of %s), d_head %d, d_head_v %d, features %s; the problem dtype %s, "
                       "d_head %d, d_head_v %d, features %s",
                       kernel->name, field, config_dtype_name(c->dtype), pairs, c->d_head,
                       config_d_head_v(c), has, types, problem->params.d_head,
                       problem->params.d_head_v, needs);
}

static flash_status_t refuse_obstacle(const flash_kernel_t *kernel, const device_t *device,
                                      const char *why_not) {
    char where[DEVICE_NAME_SIZE];
    device_name(device, where);
    return status_fail(FLASH_ERROR_UNSUPPORTED, "%s cannot run on %s: %s", kernel->name, where,
                       why_not);
}

flash_status_t select_check(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    if (kernel->config.op != problem->op)
        return refuse_op(kernel, problem);
    const char *field = mismatch(kernel, problem);
    if (field != NULL)
        return refuse_mismatch(kernel, problem, field);
    const char *why_not = obstacle(kernel, problem, device);
    return why_not == NULL ? FLASH_SUCCESS : refuse_obstacle(kernel, device, why_not);
}
