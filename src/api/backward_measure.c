/*
 * This file has the exported call that times kernels of gradients.
 */
#include "api/backward_begin.h"
#include "api/device.h"
#include "api/measure.h"
#include "arguments/backward_arguments.h"
#include "arguments/data.h"
#include "core/call_scope.h"
#include "core/status.h"
#include "select/serves.h"

/* Finds the operation that all kernels are of. */
static flash_status_t find_op(const measurement_t *m, int32_t *op) {
    FLASH_REQUIRE(m->kernels[0] != NULL, FLASH_ERROR_INVALID_ARGUMENT, "kernels[0] is NULL");
    FLASH_TRY(kernel_table_check(m->kernels[0]));
    *op = m->kernels[0]->config.op;
    FLASH_REQUIRE(*op == FLASH_OP_BACKWARD_DQ || *op == FLASH_OP_BACKWARD_DKV,
                  FLASH_ERROR_UNSUPPORTED, "%s computes no gradients", m->kernels[0]->name);
    return FLASH_SUCCESS;
}

/* Refuses what the call cannot do before anything is written. */
static flash_status_t check_wanted(const flash_backward_args_t *a, int32_t op) {
    const bool is_given =
        op == FLASH_OP_BACKWARD_DQ ? a->dq.data != NULL : a->dk.data != NULL || a->dv.data != NULL;
    FLASH_REQUIRE(is_given, FLASH_ERROR_INVALID_ARGUMENT, "%s is NULL, and the kernels compute it",
                  op == FLASH_OP_BACKWARD_DQ ? "dq.data" : "dk.data and dv.data");
    return FLASH_SUCCESS;
}

static flash_status_t begin(problem_t *problem, const device_t *device, flash_stream_t stream) {
    const uint64_t size = backward_begin_size(problem, device);
    FLASH_TRY(backward_check_workspace(problem, device, size, size));
    return backward_begin(problem, device, stream);
}

flash_status_t flash_backward_measure(const flash_backward_args_t *args,
                                      const flash_kernel_t *const *kernels, int32_t n_kernels,
                                      int32_t n_launches, flash_stream_t stream, double *seconds) {
    FLASH_CALL_SCOPE();
    flash_backward_args_t checked;
    flash_forward_args_t forward;
    problem_t problem;
    device_t device = {0};
    const measurement_t m = {.kernels = kernels,
                             .n_kernels = n_kernels,
                             .n_launches = n_launches,
                             .problem = &problem,
                             .device = &device,
                             .stream = stream};
    FLASH_TRY(measure_check_counts(&m, seconds));
    FLASH_TRY(arguments_read_backward(args, &checked, &forward, &problem));
    FLASH_TRY(find_op(&m, &problem.op));
    FLASH_TRY(check_wanted(&checked, problem.op));
    FLASH_TRY(device_describe_for(&forward, &device));
    FLASH_TRY(device_check_stream(&device, stream));
    FLASH_TRY(measure_check_kernels(&m));
    FLASH_TRY(arguments_check_backward_data(&checked, device_is_cpu(&device), &problem));
    if (problem.has_output)
        FLASH_TRY(begin(&problem, &device, stream));
    return measure(&m, seconds);
}
