/*
 * A sequence's place may hold more tokens than are in use. Gradients of these are zeros.
 */
#ifndef FLASH_CPU_UNUSED_ROWS_H
#define FLASH_CPU_UNUSED_ROWS_H

#include "core/problem.h"
#include "cpu/thread_pool.h"

/* Writes zeros to the gradients of tokens that are not in use, unless they are added to what is
 * there. */
void cpu_clear_unused_rows(const problem_t *problem, parallel_t *parallel);

#endif
