#include "api/backward_begin.h"

#include "core/status.h"
#include "cpu/backward_begin.h"
#include "cpu/operation.h"
#include "cuda/backward/begin_backward.h"
#include "cuda/backward/plan_backward.h"

#include <inttypes.h>

uint64_t backward_begin_size(const problem_t *problem, const device_t *device) {
    return device_is_cpu(device) ? cpu_backward_begin_size(problem) : plan_backward_size(problem);
}

static flash_status_t check_device_workspace(const problem_t *problem, uint64_t least) {
    FLASH_REQUIRE(problem->workspace != NULL || problem->workspace_size == 0,
                  FLASH_ERROR_INVALID_ARGUMENT, "workspace is NULL, and workspace_size is %" PRIu64,
                  problem->workspace_size);
    FLASH_REQUIRE(problem->workspace_size >= least, FLASH_ERROR_WORKSPACE_TOO_SMALL,
                  "workspace_size is %" PRIu64 ": needs %" PRIu64 " bytes", problem->workspace_size,
                  least);
    return FLASH_SUCCESS;
}

flash_status_t backward_check_workspace(const problem_t *problem, const device_t *device,
                                        uint64_t least, uint64_t best) {
    const cpu_needs_t needs = {.workspace = best, .least_workspace = least};
    return device_is_cpu(device) ? cpu_check_workspace(problem, &needs)
                                 : check_device_workspace(problem, least);
}

flash_status_t backward_prepare(const device_t *device) {
    return device_is_cpu(device) ? FLASH_SUCCESS : cuda_backward_prepare(device);
}

flash_status_t backward_begin(problem_t *problem, const device_t *device, flash_stream_t stream) {
    return device_is_cpu(device) ? cpu_backward_begin(problem)
                                 : cuda_backward_begin(problem, device, stream);
}
