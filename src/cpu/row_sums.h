/*
 * The backward pass needs of each row of Q: D, the sum of dO * O, and the logarithm of the sum of
 * its weights, that of the sink included.
 */
#ifndef FLASH_CPU_ROW_SUMS_H
#define FLASH_CPU_ROW_SUMS_H

#include "core/problem.h"
#include "cpu/thread_pool.h"

/* Returns the bytes of the partial sums of the gradients of sinks; 0 if none are wanted. */
uint64_t cpu_sink_sums_size(const problem_t *problem);

/* Computes row_d and row_log_sum of the problem's gradients, and the gradients of sinks if they are
 * wanted: these by way of sink_sums, of the size above, 8-byte aligned. */
void cpu_row_sums(const problem_t *problem, double *sink_sums, parallel_t *parallel);

#endif
