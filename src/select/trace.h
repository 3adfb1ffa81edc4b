/*
 * FLASH_TRACE=1: each distinct choice of a kernel, once, to standard error.
 */
#ifndef FLASH_TRACE_H
#define FLASH_TRACE_H

#include "core/problem.h"
#include "flashattn.h"

/* Prints the choice unless it was printed before or tracing is off. */
void trace_choice(const flash_kernel_t *kernel, const problem_t *problem, const char *reason);

#endif
