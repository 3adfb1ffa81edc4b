/*
 * A backward call on the CPU begins with what its operations need, which it computes in its
 * workspace.
 */
#ifndef FLASH_CPU_BACKWARD_BEGIN_H
#define FLASH_CPU_BACKWARD_BEGIN_H

#include "core/problem.h"

/* Returns the bytes that a call needs at the begin of its workspace. */
uint64_t cpu_backward_begin_size(const problem_t *problem);

/* Copies the call's lengths, computes what gradients need of each row and the gradients of sinks,
 * and writes zeros where no query or key is. The problem, which has checked data and a workspace
 * of at least that size, then points to what was computed, and its workspace to the rest. */
flash_status_t cpu_backward_begin(problem_t *problem);

#endif
