/*
 * This file has the exported calls of measuring and tuning; flash_set_tuning() is in
 * select/tuning/in_force.c.
 */
#include "api/device.h"
#include "api/measure.h"
#include "api/resolve.h"
#include "arguments/data.h"
#include "arguments/forward.h"
#include "core/call_scope.h"
#include "core/status.h"
#include "select/tuning/follow.h"
#include "select/tuning/format.h"

#include <math.h>

/* ---- flash_measure ---- */

flash_status_t flash_measure(const flash_forward_args_t *args, const flash_kernel_t *const *kernels,
                             int32_t n_kernels, int32_t n_launches, flash_stream_t stream,
                             double *seconds) {
    FLASH_CALL_SCOPE();
    flash_forward_args_t checked;
    problem_t problem;
    device_t device = {0};
    const measurement_t m = {.kernels = kernels,
                             .n_kernels = n_kernels,
                             .n_launches = n_launches,
                             .problem = &problem,
                             .device = &device,
                             .stream = stream};
    FLASH_TRY(measure_check_counts(&m, seconds));
    FLASH_TRY(arguments_read(args, &checked, &problem));
    FLASH_TRY(device_describe_for(&checked, &device));
    FLASH_TRY(device_check_stream(&device, stream));
    FLASH_TRY(arguments_check_data(&checked, device_is_cpu(&device), &problem));
    return measure(&m, seconds);
}

/* ---- flash_tuning_format ---- */

/* Refuses problems for which selection follows no measured results. */
static flash_status_t check_tunable(const problem_t *problem, const device_t *device) {
    FLASH_REQUIRE(!device_is_cpu(device), FLASH_ERROR_UNSUPPORTED,
                  "device is the CPU: its kernels are chosen only by the processor");
    FLASH_REQUIRE(!problem->batch_invariant, FLASH_ERROR_UNSUPPORTED,
                  "flags has FLASH_FLAG_BATCH_INVARIANT: such problems follow no results");
    FLASH_REQUIRE(!problem_has_other_d_head_v(problem), FLASH_ERROR_UNSUPPORTED,
                  "d_head_v is %d and d_head %d: problems where they differ follow no results",
                  problem->params.d_head_v, problem->params.d_head);
    return FLASH_SUCCESS;
}

static flash_status_t to_nanoseconds(double seconds, int64_t *nanoseconds) {
    const double rounded = round(seconds * 1e9);
    FLASH_REQUIRE(seconds > 0 && rounded < 0x1p63, FLASH_ERROR_INVALID_ARGUMENT,
                  "seconds is %g: not positive and finite", seconds);
    *nanoseconds = rounded < 1 ? 1 : (int64_t)rounded;
    return FLASH_SUCCESS;
}

/* Writes the line of a call whose kernel is known, for any operation. */
static flash_status_t format_result(const resolved_t *r, int64_t nanoseconds, char *text,
                                    size_t size) {
    FLASH_TRY(check_tunable(&r->problem, &r->device));
    const tuning_row_t row = {.key = tuning_key(&r->problem, &r->device),
                              .nanoseconds = nanoseconds,
                              .kernel = r->kernel};
    return tuning_write(&row, text, size);
}

flash_status_t flash_tuning_format(const flash_forward_args_t *args, const flash_kernel_t *kernel,
                                   double seconds, char *text, size_t size) {
    FLASH_CALL_SCOPE();
    resolved_t r = {0};
    int64_t nanoseconds;
    FLASH_REQUIRE(kernel != NULL, FLASH_ERROR_INVALID_ARGUMENT, "kernel is NULL");
    FLASH_TRY(to_nanoseconds(seconds, &nanoseconds));
    FLASH_TRY(resolve(args, FLASH_OP_FORWARD, kernel, &r));
    return format_result(&r, nanoseconds, text, size);
}
