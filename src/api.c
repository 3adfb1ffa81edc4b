/*
 * The exported calls of attention, and the versions: each a few steps, one file a step.
 */
#include "arguments.h"
#include "call_scope.h"
#include "config.h"
#include "device.h"
#include "flashattn.h"
#include "kernel_table.h"
#include "launch.h"
#include "resolve.h"
#include "status.h"
#include "trace.h"

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

const char *flash_version(void) {
    return STRINGIFY(FLASH_VERSION_MAJOR) "." STRINGIFY(FLASH_VERSION_MINOR) "." STRINGIFY(
        FLASH_VERSION_PATCH);
}

int32_t flash_abi_version(void) {
    return FLASH_ABI_VERSION;
}

/* ---- Attention ---- */

flash_status_t flash_forward(const flash_forward_args_t *args, const flash_config_t *config,
                             flash_stream_t stream) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    FLASH_TRY(resolve(args, config, &r));
    FLASH_TRY(arguments_check_data(&r.args, device_is_cpu(&r.device), &r.problem));
    if (!r.problem.has_output)
        return FLASH_SUCCESS;
    if (r.traced)
        trace_choice(r.kernel, &r.problem, r.reason);
    return launch_forward(r.kernel, &r.problem, &r.device, stream);
}

flash_status_t flash_workspace_size(const flash_forward_args_t *args, const flash_config_t *config,
                                    uint64_t *size) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    FLASH_REQUIRE(size != NULL, FLASH_ERROR_INVALID_ARGUMENT, "size is NULL");
    FLASH_TRY(resolve(args, config, &r));
    return launch_workspace(r.kernel, &r.problem, &r.device, size);
}

flash_status_t flash_prepare(const flash_forward_args_t *args, const flash_config_t *config) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    FLASH_TRY(resolve(args, config, &r));
    return launch_prepare(r.kernel, &r.problem, &r.device);
}

flash_status_t flash_select_config(const flash_forward_args_t *args, flash_config_t *config,
                                   char *reason, size_t reason_size) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    FLASH_TRY(resolve(args, NULL, &r));
    FLASH_TRY(config_write(&r.kernel->config, config));
    status_copy_text(r.reason, reason, reason_size);
    return FLASH_SUCCESS;
}

flash_status_t flash_query_support(const flash_forward_args_t *args, const flash_config_t *config,
                                   char *reason, size_t reason_size) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    const flash_status_t status = resolve(args, config, &r);
    status_copy_text(status == FLASH_SUCCESS ? r.reason : status_message(), reason, reason_size);
    return status;
}

flash_status_t flash_combine(const flash_combine_args_t *args, flash_stream_t stream) {
    FLASH_CALL_SCOPE();
    flash_combine_args_t own;
    device_t device = {0};
    FLASH_TRY(arguments_read_combine(args, &own));
    FLASH_TRY(device_describe(own.device, &device));
    return launch_combine(&own, &device, stream);
}
