/*
 * This file has the exported calls of attention, and the versions. Each is a few steps, with a file
 * per step.
 */
#include "api/device.h"
#include "api/resolve.h"
#include "arguments/combine_arguments.h"
#include "arguments/data.h"
#include "arguments/executor.h"
#include "config/kernel_table.h"
#include "core/call_scope.h"
#include "core/status.h"
#include "cpu/cpu_combine.h"
#include "cuda/runtime/cuda_combine.h"
#include "flashattn.h"
#include "select/trace.h"

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

const char *flash_version(void) {
    return STRINGIFY(FLASH_VERSION_MAJOR) "." STRINGIFY(FLASH_VERSION_MINOR) "." STRINGIFY(
        FLASH_VERSION_PATCH);
}

int32_t flash_version_number(void) {
    return FLASH_VERSION_NUMBER;
}

int32_t flash_abi_version(void) {
    return FLASH_ABI_VERSION;
}

/* ---- Attention ---- */

flash_status_t flash_forward(const flash_forward_args_t *args, const flash_kernel_t *kernel,
                             flash_stream_t stream) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    FLASH_TRY(resolve(args, FLASH_OP_FORWARD, kernel, &r));
    FLASH_TRY(device_check_stream(&r.device, stream));
    FLASH_TRY(arguments_check_data(&r.args, device_is_cpu(&r.device), &r.problem));
    if (!r.problem.has_output)
        return FLASH_SUCCESS;
    if (r.traced)
        trace_choice(r.kernel, &r.problem, r.reason);
    return problem_calls(r.kernel, &r.problem)->launch(r.kernel, &r.problem, &r.device, stream);
}

flash_status_t flash_workspace_size(const flash_forward_args_t *args, const flash_kernel_t *kernel,
                                    uint64_t *size) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    FLASH_REQUIRE(size != NULL, FLASH_ERROR_INVALID_ARGUMENT, "size is NULL");
    FLASH_TRY(resolve(args, FLASH_OP_FORWARD, kernel, &r));
    return problem_calls(r.kernel, &r.problem)->workspace(r.kernel, &r.problem, &r.device, size);
}

flash_status_t flash_prepare(const flash_forward_args_t *args, const flash_kernel_t *kernel) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    FLASH_TRY(resolve(args, FLASH_OP_FORWARD, kernel, &r));
    return problem_calls(r.kernel, &r.problem)->prepare(r.kernel, &r.problem, &r.device);
}

flash_status_t flash_select_kernel(const flash_forward_args_t *args, const flash_kernel_t **kernel,
                                   char *reason, size_t reason_size) {
    FLASH_CALL_SCOPE();
    resolved_t r = {.explained = reason != NULL};
    FLASH_REQUIRE(kernel != NULL, FLASH_ERROR_INVALID_ARGUMENT, "kernel is NULL");
    FLASH_TRY(resolve(args, FLASH_OP_FORWARD, NULL, &r));
    *kernel = r.kernel;
    status_copy_text(r.reason, reason, reason_size);
    return FLASH_SUCCESS;
}

flash_status_t flash_query_support(const flash_forward_args_t *args, const flash_kernel_t *kernel,
                                   char *reason, size_t reason_size) {
    FLASH_CALL_SCOPE();
    resolved_t r = {.explained = reason != NULL};
    const flash_status_t status = resolve(args, FLASH_OP_FORWARD, kernel, &r);
    status_copy_text(status == FLASH_SUCCESS ? r.reason : status_message(), reason, reason_size);
    return status;
}

flash_status_t flash_combine(const flash_combine_args_t *args, flash_stream_t stream) {
    FLASH_CALL_SCOPE();
    flash_combine_args_t checked;
    device_t device = {0};
    executor_t executor;
    FLASH_TRY(arguments_read_combine(args, &checked));
    FLASH_TRY(arguments_read_executor(checked.executor, &executor));
    FLASH_TRY(device_describe(checked.device, &device));
    FLASH_TRY(device_check_stream(&device, stream));
    return device_is_cpu(&device) ? cpu_combine(&checked, &executor)
                                  : cuda_combine(&checked, &device, stream);
}
