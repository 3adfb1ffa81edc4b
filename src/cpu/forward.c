/*
 * The forward pass on the CPU cuts a problem into tasks, shares them among threads, and merges the
 * partial results of tasks that have the same rows.
 */
#include "cpu/forward.h"

#include "config/kernel_table.h"
#include "core/status.h"
#include "cpu/call.h"

static cpu_needs_t needs_of(const cpu_plan_t *plan) {
    return (cpu_needs_t){cpu_plan_workspace(plan), plan->least_workspace, plan->max_workers};
}

static flash_status_t plan(const flash_kernel_t *kernel, const problem_t *problem,
                           int32_t n_threads, cpu_needs_t *needs) {
    cpu_plan_t made;
    FLASH_TRY(cpu_plan_make(&kernel->config, &problem->params, n_threads, &made));
    *needs = needs_of(&made);
    return FLASH_SUCCESS;
}

/* Makes the plan for the threads of a call, in the problem's workspace. */
static flash_status_t plan_in_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                        int32_t n_threads, cpu_plan_t *made) {
    const flash_params_t *params = &problem->params;
    FLASH_TRY(cpu_plan_make(&kernel->config, params, n_threads, made));
    if (problem->workspace != NULL && cpu_plan_fit(made, params, problem->workspace_size))
        return FLASH_SUCCESS;
    const cpu_needs_t needs = needs_of(made);
    return cpu_check_workspace(problem, &needs); /* it says why not */
}

static flash_status_t run(const flash_kernel_t *kernel, const problem_t *problem,
                          parallel_t *parallel) {
    countdown_sleepers_t sleepers;
    cpu_call_t call = {.kernel = (cpu_kernel_t)kernel->function, .sleepers = &sleepers};
    FLASH_TRY(plan_in_workspace(kernel, problem, parallel->n_workers, &call.plan));
    cpu_call_begin(&call, problem);
    countdown_sleepers_init(&sleepers);
    parallel_for(parallel, call.plan.n_workers, cpu_call_work, &call);
    countdown_sleepers_destroy(&sleepers);
    return FLASH_SUCCESS;
}

const cpu_operation_t cpu_forward = {.plan = plan, .run = run};
