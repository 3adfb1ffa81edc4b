/*
 * Running a kernel of a CPU family: a problem is cut into tasks, the tasks are shared among
 * threads, and tasks that hold parts of the same rows are merged.
 */
#ifndef FLASH_LAUNCH_CPU_H
#define FLASH_LAUNCH_CPU_H

#include "flashattn.h"
#include "core/problem.h"

/* Bytes of workspace at the present number of threads. */
flash_status_t launch_cpu_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                    uint64_t *size);

/* Starts the threads that the call will use. */
flash_status_t launch_cpu_prepare(const flash_kernel_t *kernel, const problem_t *problem);

/* Computes the problem, which has output and checked data. */
flash_status_t launch_cpu(const flash_kernel_t *kernel, const problem_t *problem);

/* Merges partial results; the arguments are checked. */
flash_status_t launch_cpu_combine(const flash_combine_args_t *args);

#endif
