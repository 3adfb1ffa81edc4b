/*
 * The backward pass on the CPU is an operation for dQ and one for dK and dV. Before them a call
 * begins with what both need, which it computes in its workspace.
 */
#ifndef FLASH_CPU_BACKWARD_H
#define FLASH_CPU_BACKWARD_H

#include "cpu/operation.h"

extern const cpu_operation_t cpu_backward_dq;
extern const cpu_operation_t cpu_backward_dkv;

/* Returns the bytes that a call needs at the begin of its workspace. */
uint64_t cpu_backward_begin_size(const problem_t *problem);

/* Copies the call's lengths, computes what gradients need of each row and the gradients of sinks,
 * and writes zeros where no query or key is. The problem, which has checked data and a workspace
 * of at least that size, then points to what was computed, and its workspace to the rest. */
flash_status_t cpu_backward_begin(problem_t *problem);

#endif
