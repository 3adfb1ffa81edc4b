/*
 * This file reads and checks a call's executor.
 */
#include "arguments/executor.h"

#include "core/status.h"
#include "core/struct_size.h"

flash_status_t arguments_read_executor(const flash_executor_t *executor, executor_t *checked) {
    flash_executor_t read;
    *checked = (executor_t){0};
    if (executor == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(STRUCT_READ(flash_executor_t, &read, executor));
    FLASH_REQUIRE(read.n_workers >= (read.run != NULL) && read.n_workers <= EXECUTOR_MAX_WORKERS,
                  FLASH_ERROR_INVALID_ARGUMENT, "executor.n_workers is %d: not %d ... %d",
                  read.n_workers, read.run != NULL, EXECUTOR_MAX_WORKERS);
    *checked = (executor_t){.run = read.run, .context = read.context, .n_workers = read.n_workers};
    return FLASH_SUCCESS;
}
