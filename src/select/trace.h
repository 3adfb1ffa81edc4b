/*
 * With FLASHATTN_TRACE=1 each distinct choice of a kernel is printed once, to standard error.
 */
#ifndef FLASH_TRACE_H
#define FLASH_TRACE_H

#include "core/problem.h"
#include "flashattn.h"

#include <stdbool.h>

/* Says whether FLASHATTN_TRACE is on. Returns INVALID_ARGUMENT for a bad value. */
flash_status_t trace_is_on(bool *on);

/* Prints the choice unless it was printed before. */
void trace_choice(const flash_kernel_t *kernel, const problem_t *problem, const char *reason);

#endif
