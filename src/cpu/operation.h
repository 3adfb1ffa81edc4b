/*
 * CPU families compute an operation (FLASH_OP_...) through this struct: it plans a call for a
 * number of threads, and runs it on them. launch.c acquires the threads.
 */
#ifndef FLASH_CPU_OPERATION_H
#define FLASH_CPU_OPERATION_H

#include "core/problem.h"
#include "cpu/thread_pool.h"
#include "flashattn.h"

/* A call needs these of its caller and of the machine. */
typedef struct cpu_needs {
    uint64_t workspace;       /* bytes that it gains by, at any alignment */
    uint64_t least_workspace; /* bytes without which it fails */
    int32_t n_workers;        /* threads that it gains by */
} cpu_needs_t;

typedef struct cpu_operation {
    /* Says what a call needs on that many threads. */
    flash_status_t (*plan)(const flash_kernel_t *kernel, const problem_t *problem,
                           int32_t n_threads, cpu_needs_t *needs);
    /* Computes the problem, which has output and checked data, on the threads. Fails as
     * cpu_check_workspace() does. */
    flash_status_t (*run)(const flash_kernel_t *kernel, const problem_t *problem,
                          parallel_t *parallel);
} cpu_operation_t;

/* Returns INVALID_ARGUMENT or WORKSPACE_TOO_SMALL unless the problem's workspace suffices. */
flash_status_t cpu_check_workspace(const problem_t *problem, const cpu_needs_t *needs);

#endif
