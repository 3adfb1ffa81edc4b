/*
 * The backward pass on the CPU cuts a problem into tasks, of rows for dQ, of keys for dK and dV, or
 * of whole heads for all three. No two tasks write to the same row, and each adds up in an order of
 * its own, so that results do not depend on who does which task.
 */
#ifndef FLASH_CPU_BACKWARD_TASKS_H
#define FLASH_CPU_BACKWARD_TASKS_H

#include "core/problem.h"
#include "cpu/operation.h"
#include "cpu/thread_pool.h"

typedef enum backward_tasks {
    BACKWARD_TASKS_OF_ROWS, /* dQ */
    BACKWARD_TASKS_OF_KEYS, /* dK and dV */
    BACKWARD_TASKS_OF_HEADS /* all three, by a kernel of dK and dV (cpu/backward_kernel.h) */
} backward_tasks_t;

/* Returns the K/V heads of all sequences. */
int64_t backward_heads(const flash_params_t *params);

/* Returns the bytes of scratch of a worker. */
uint64_t backward_scratch_size(backward_tasks_t tasks, const flash_config_t *config,
                               const flash_params_t *params);

/* Says what tasks need on that many threads. */
void backward_plan(backward_tasks_t tasks, const flash_config_t *config, const problem_t *problem,
                   int32_t n_threads, cpu_needs_t *needs);

/* Runs all tasks. Fails as cpu_check_workspace() does. */
flash_status_t backward_run(backward_tasks_t tasks, const flash_kernel_t *kernel,
                            const problem_t *problem, parallel_t *parallel);

#endif
