/*
 * The kernel of a call is the caller's choice, or that of FLASHATTN_CONFIG, or the library's, which
 * follows measured results if there are any.
 */
#include "api/resolve.h"

#include "api/device.h"

#include "arguments/forward.h"
#include "config/kernel_table.h"
#include "core/environment.h"
#include "core/status.h"
#include "select/serves.h"
#include "select/trace.h"
#include "select/tuning/follow.h"
#include "select/tuning/in_force.h"

/* ---- FLASHATTN_CONFIG ---- */

static environment_variable_t variable = ENVIRONMENT_VARIABLE_INIT;
static bool is_forced;
static flash_config_t forced = FLASH_CONFIG_INIT;

/* Puts the variable's name before the message of a refusal. */
static flash_status_t refuse_variable(flash_status_t status) {
    char why[480];
    status_copy_text(status_message(), why, sizeof why);
    return status_fail(status, "FLASHATTN_CONFIG: %s", why);
}

static flash_status_t parse(const char *value) {
    const flash_status_t status = flash_config_parse(value, &forced);
    if (status != FLASH_SUCCESS)
        return refuse_variable(status);
    is_forced = true;
    return FLASH_SUCCESS;
}

static void read_variable(void) {
    environment_parse(&variable, "FLASHATTN_CONFIG", parse);
}

/* ---- The kernel ---- */

static flash_status_t use_kernel(const flash_kernel_t *kernel, const char *reason, resolved_t *r) {
    FLASH_TRY(kernel_table_check(kernel));
    r->kernel = kernel;
    r->is_named = true;
    if (r->explained)
        status_copy_text(reason, r->reason, sizeof r->reason);
    return select_check(r->kernel, &r->problem, &r->device);
}

static flash_status_t find_and_use(const flash_config_t *config, const char *reason,
                                   resolved_t *r) {
    const flash_kernel_t *kernel;
    FLASH_TRY(kernel_table_require(config, &kernel));
    return use_kernel(kernel, reason, r);
}

/* A refusal says whose choice the kernel is, because the call does not. */
static flash_status_t use_forced(resolved_t *r) {
    const flash_status_t status = find_and_use(&forced, "FLASHATTN_CONFIG", r);
    return status == FLASH_SUCCESS ? status : refuse_variable(status);
}

/* The CPU follows no results, and needs none that can be understood. */
static flash_status_t choose(resolved_t *r) {
    const tuning_results_t *results = NULL;
    char *reason = r->explained ? r->reason : NULL;
    if (!device_is_cpu(&r->device))
        FLASH_TRY(tuning_in_force(&results));
    FLASH_TRY(select_kernel(&r->problem, &r->device, &r->kernel, reason));
    tuning_follow(results, &r->problem, &r->device, &r->kernel, reason);
    return FLASH_SUCCESS;
}

flash_status_t resolve_kernel(int32_t op, const flash_kernel_t *kernel, resolved_t *r) {
    r->problem.op = op;
    r->mixed_rows = (mixed_rows_t){.B_r = 0};
    r->problem.mixed_rows = &r->mixed_rows;
    FLASH_TRY(trace_is_on(&r->traced));
    r->explained = r->explained || r->traced;
    FLASH_TRY(device_describe_for(&r->args, &r->device));
    if (kernel != NULL)
        return use_kernel(kernel, "the caller's kernel", r);
    FLASH_TRY(environment_read(&variable, read_variable));
    if (is_forced && forced.op == op)
        return use_forced(r);
    return choose(r);
}

flash_status_t resolve(const flash_forward_args_t *args, int32_t op, const flash_kernel_t *kernel,
                       resolved_t *r) {
    FLASH_TRY(arguments_read(args, &r->args, &r->problem));
    return resolve_kernel(op, kernel, r);
}
