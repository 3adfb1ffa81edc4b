/*
 * Who runs the tasks of a call on the CPU.
 */
#ifndef FLASH_ARGUMENTS_EXECUTOR_H
#define FLASH_ARGUMENTS_EXECUTOR_H

#include "core/problem.h"
#include "flashattn.h"

/* Reads a caller's executor; NULL: that of the process, all zero. INVALID_ARGUMENT, UNSUPPORTED (a
 * newer caller's field). */
flash_status_t arguments_read_executor(const flash_executor_t *executor, executor_t *own);

#endif
