/*
 * This file checks a call's workspace against what the call needs.
 */
#include "cpu/operation.h"

#include "core/status.h"

#include <inttypes.h>

flash_status_t cpu_check_workspace(const problem_t *problem, const cpu_needs_t *needs) {
    FLASH_REQUIRE(problem->workspace != NULL || problem->workspace_size == 0,
                  FLASH_ERROR_INVALID_ARGUMENT, "workspace is NULL, and workspace_size is %" PRIu64,
                  problem->workspace_size);
    FLASH_REQUIRE(
        problem->workspace_size >= needs->least_workspace, FLASH_ERROR_WORKSPACE_TOO_SMALL,
        "workspace_size is %" PRIu64 ": needs %" PRIu64 " bytes (%" PRIu64 " with one thread)",
        problem->workspace_size, needs->workspace, needs->least_workspace);
    return FLASH_SUCCESS;
}
