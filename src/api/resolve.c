/*
 * Whose choice the kernel of a call is: the caller's, the environment's, or the library's, which
 * follows measured results where there are any.
 */
#include "api/resolve.h"

#include "api/device.h"

#include "arguments/forward.h"
#include "config/config.h"
#include "config/kernel_table.h"
#include "core/environment.h"
#include "core/status.h"
#include "select/serves.h"
#include "select/tuning/follow.h"
#include "select/tuning/in_force.h"

static flash_status_t use_config(const flash_config_t *config, const char *reason, resolved_t *r) {
    flash_config_t own;
    FLASH_TRY(config_read(&own, config));
    FLASH_TRY(kernel_table_require(&own, &r->kernel));
    status_copy_text(reason, r->reason, sizeof r->reason);
    return select_check(r->kernel, &r->problem, &r->device);
}

static flash_status_t choose(const environment_t *environment, resolved_t *r) {
    FLASH_TRY(select_kernel(&r->problem, &r->device, &r->kernel, r->reason));
    tuning_follow(tuning_in_force(environment), &r->problem, &r->device, &r->kernel, r->reason);
    return FLASH_SUCCESS;
}

static flash_status_t resolve_kernel(const flash_config_t *config, resolved_t *r) {
    const environment_t *environment;
    FLASH_TRY(environment_get(&environment));
    FLASH_TRY(device_describe(r->args.device, &r->device));
    if (config != NULL)
        return use_config(config, "the caller's configuration", r);
    if (environment->has_config)
        return use_config(&environment->config, "FLASH_CONFIG", r);
    return choose(environment, r);
}

flash_status_t resolve(const flash_forward_args_t *args, const flash_config_t *config,
                       resolved_t *r) {
    FLASH_TRY(arguments_read(args, &r->args, &r->problem));
    return resolve_kernel(config, r);
}
