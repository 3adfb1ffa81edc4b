/*
 * This file runs a kernel of a CPU family on the threads of a call.
 */
#include "cpu/launch.h"

#include "config/kernel_table.h"
#include "core/status.h"
#include "cpu/call.h"
#include "cpu/thread_pool.h"

#include <inttypes.h>

/* Makes the plan for the threads of a call, in the problem's workspace. */
static flash_status_t make_plan(const flash_kernel_t *kernel, const problem_t *problem,
                                const parallel_t *parallel, cpu_plan_t *plan) {
    const flash_params_t *params = &problem->params;
    FLASH_TRY(cpu_plan_make(&kernel->config, params, parallel->n_workers, plan));
    FLASH_REQUIRE(problem->workspace != NULL || problem->workspace_size == 0,
                  FLASH_ERROR_INVALID_ARGUMENT, "workspace is NULL, and workspace_size is %" PRIu64,
                  problem->workspace_size);
    FLASH_REQUIRE(
        cpu_plan_fit(plan, params, problem->workspace_size), FLASH_ERROR_WORKSPACE_TOO_SMALL,
        "workspace_size is %" PRIu64 ": needs %" PRIu64 " bytes (%" PRIu64 " with one thread)",
        problem->workspace_size, cpu_plan_workspace(plan), plan->least_workspace);
    return FLASH_SUCCESS;
}

static flash_status_t run(const flash_kernel_t *kernel, const problem_t *problem,
                          parallel_t *parallel) {
    countdown_sleepers_t sleepers;
    cpu_call_t call = {.kernel = (cpu_kernel_t)kernel->function, .sleepers = &sleepers};
    FLASH_TRY(make_plan(kernel, problem, parallel, &call.plan));
    cpu_call_begin(&call, problem);
    countdown_sleepers_init(&sleepers);
    parallel_for(parallel, call.plan.n_workers, cpu_call_work, &call);
    countdown_sleepers_destroy(&sleepers);
    return FLASH_SUCCESS;
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    (void)device;
    (void)stream; /* the call returns when O is complete */
    parallel_t parallel;
    FLASH_TRY(parallel_acquire(&problem->executor, &parallel));
    const flash_status_t status = run(kernel, problem, &parallel);
    parallel_release(&parallel);
    return status;
}

/* Acquires threads and makes the plan for them. If it fails there is nothing to release. */
static flash_status_t acquire_and_plan(const flash_kernel_t *kernel, const problem_t *problem,
                                       parallel_t *parallel, cpu_plan_t *plan) {
    FLASH_TRY(parallel_acquire(&problem->executor, parallel));
    const flash_status_t status =
        cpu_plan_make(&kernel->config, &problem->params, parallel->n_workers, plan);
    if (status != FLASH_SUCCESS)
        parallel_release(parallel);
    return status;
}

static flash_status_t workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size) {
    (void)device;
    parallel_t parallel;
    cpu_plan_t plan;
    FLASH_TRY(acquire_and_plan(kernel, problem, &parallel, &plan));
    *size = problem->has_output ? cpu_plan_workspace(&plan) : 0;
    parallel_release(&parallel);
    return FLASH_SUCCESS;
}

static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    (void)device;
    parallel_t parallel;
    cpu_plan_t plan;
    FLASH_TRY(acquire_and_plan(kernel, problem, &parallel, &plan));
    if (plan.max_workers > 1)
        parallel_start(&parallel);
    parallel_release(&parallel);
    return FLASH_SUCCESS;
}

static flash_status_t check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device) {
    (void)device;
    parallel_t parallel;
    cpu_plan_t plan;
    FLASH_TRY(parallel_acquire(&problem->executor, &parallel));
    const flash_status_t status = make_plan(kernel, problem, &parallel, &plan);
    parallel_release(&parallel);
    return status;
}

const family_calls_t cpu_forward_calls = {.workspace = workspace,
                                          .prepare = prepare,
                                          .check_workspace = check_workspace,
                                          .launch = launch};
