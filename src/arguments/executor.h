/*
 * The executor of a call runs its tasks on the CPU.
 */
#ifndef FLASH_ARGUMENTS_EXECUTOR_H
#define FLASH_ARGUMENTS_EXECUTOR_H

#include "core/problem.h"
#include "flashattn.h"

/* Reads a caller's executor. NULL gives that of the process, all zero. Returns INVALID_ARGUMENT, or
 * UNSUPPORTED for a field of a newer caller. */
flash_status_t arguments_read_executor(const flash_executor_t *executor, executor_t *checked);

#endif
