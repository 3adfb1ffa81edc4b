/*
 * This file runs kernels of CPU families on the threads of a call, by their operation's plan.
 */
#include "cpu/launch.h"

#include "config/kernel_table.h"
#include "core/status.h"
#include "cpu/operation.h"
#include "cpu/thread_pool.h"

static const cpu_operation_t *operation_of(const flash_kernel_t *kernel) {
    return kernel_op(kernel)->cpu;
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    (void)device;
    (void)stream; /* the call returns when the outputs are complete */
    parallel_t parallel;
    FLASH_TRY(parallel_acquire(&problem->executor, &parallel));
    const flash_status_t status = operation_of(kernel)->run(kernel, problem, &parallel);
    parallel_release(&parallel);
    return status;
}

/* Acquires threads and plans a call on them. If it fails there is nothing to release. */
static flash_status_t acquire_and_plan(const flash_kernel_t *kernel, const problem_t *problem,
                                       parallel_t *parallel, cpu_needs_t *needs) {
    FLASH_TRY(parallel_acquire(&problem->executor, parallel));
    const flash_status_t status =
        operation_of(kernel)->plan(kernel, problem, parallel->n_workers, needs);
    if (status != FLASH_SUCCESS)
        parallel_release(parallel);
    return status;
}

/* Says what a call needs at the present number of threads. */
static flash_status_t find_needs(const flash_kernel_t *kernel, const problem_t *problem,
                                 cpu_needs_t *needs) {
    parallel_t parallel;
    FLASH_TRY(acquire_and_plan(kernel, problem, &parallel, needs));
    parallel_release(&parallel);
    return FLASH_SUCCESS;
}

static flash_status_t workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size) {
    (void)device;
    cpu_needs_t needs;
    FLASH_TRY(find_needs(kernel, problem, &needs));
    *size = problem->has_output ? needs.workspace : 0;
    return FLASH_SUCCESS;
}

static flash_status_t least_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, uint64_t *size) {
    (void)device;
    cpu_needs_t needs;
    FLASH_TRY(find_needs(kernel, problem, &needs));
    *size = problem->has_output ? needs.least_workspace : 0;
    return FLASH_SUCCESS;
}

static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    (void)device;
    parallel_t parallel;
    cpu_needs_t needs;
    FLASH_TRY(acquire_and_plan(kernel, problem, &parallel, &needs));
    if (needs.n_workers > 1)
        parallel_start(&parallel);
    parallel_release(&parallel);
    return FLASH_SUCCESS;
}

static flash_status_t check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device) {
    (void)device;
    cpu_needs_t needs;
    FLASH_TRY(find_needs(kernel, problem, &needs));
    return cpu_check_workspace(problem, &needs);
}

const family_calls_t cpu_calls = {.workspace = workspace,
                                  .least_workspace = least_workspace,
                                  .prepare = prepare,
                                  .check_workspace = check_workspace,
                                  .launch = launch};
