#include "cpu/backward.h"

#include "config/kernel_table.h"
#include "core/int64.h"
#include "core/status.h"
#include "cpu/backward_tasks.h"
#include "kernels/cpu/backward_kernel.h"
#include "kernels/cpu/tuning.h"

#define JOINT_MAX_BYTES ((uint64_t)GRADIENT_JOINT_MAX_MIB * MIB)

/* ---- The operations, each by itself ---- */

static flash_status_t plan_dq(const flash_kernel_t *kernel, const problem_t *problem,
                              int32_t n_threads, cpu_needs_t *needs) {
    backward_plan(BACKWARD_TASKS_OF_ROWS, &kernel->config, problem, n_threads, needs);
    return FLASH_SUCCESS;
}

static flash_status_t plan_dkv(const flash_kernel_t *kernel, const problem_t *problem,
                               int32_t n_threads, cpu_needs_t *needs) {
    backward_plan(BACKWARD_TASKS_OF_KEYS, &kernel->config, problem, n_threads, needs);
    return FLASH_SUCCESS;
}

static flash_status_t run_dq(const flash_kernel_t *kernel, const problem_t *problem,
                             parallel_t *parallel) {
    return backward_run(BACKWARD_TASKS_OF_ROWS, kernel, problem, parallel);
}

static flash_status_t run_dkv(const flash_kernel_t *kernel, const problem_t *problem,
                              parallel_t *parallel) {
    return backward_run(BACKWARD_TASKS_OF_KEYS, kernel, problem, parallel);
}

const cpu_operation_t cpu_backward_dq = {.plan = plan_dq, .run = run_dq};
const cpu_operation_t cpu_backward_dkv = {.plan = plan_dkv, .run = run_dkv};

/* ---- Both together ---- */

/* Returns the bytes of scratch of a worker with joint tasks; more than the most if that is too
 * much. */
static uint64_t joint_scratch(const flash_config_t *config, const flash_params_t *p) {
    const double rows = (double)p->seqlen_q * p->group, columns = (double)p->d_head + p->d_head_v;
    return rows * columns * sizeof(float) > (double)JOINT_MAX_BYTES
               ? UINT64_MAX
               : backward_scratch_size(BACKWARD_TASKS_OF_HEADS, config, p);
}

/* Says whether joint tasks, of whole heads, end sooner than tasks of rows and of keys, which are so
 * many that all threads end together. */
static bool joint_tasks_pay(const flash_params_t *p, int32_t n_workers) {
    const int64_t heads = backward_heads(p), rounds = divide_up(heads, max64(n_workers, 1));
    return (double)GRADIENT_JOINT_PRODUCTS * (double)rounds * n_workers <=
           (double)GRADIENT_PRODUCTS * (double)heads;
}

/* The size never falls while lengths or the batch grow: a workspace for long sequences lets short
 * ones gain, too. */
flash_status_t cpu_backward_joint_workspace(const flash_kernel_t *dq, const flash_kernel_t *dkv,
                                            const problem_t *problem, uint64_t *size) {
    const uint64_t scratch =
        min_u64(joint_scratch(&dkv->config, &problem->params), JOINT_MAX_BYTES);
    parallel_t parallel;
    *size = 0;
    if (!problem->has_output || !cpu_backward_joins(&dq->config, &dkv->config))
        return FLASH_SUCCESS;
    FLASH_TRY(parallel_acquire(&problem->executor, &parallel));
    const uint64_t heads = (uint64_t)backward_heads(&problem->params);
    const uint64_t workers = min_u64((uint64_t)parallel.n_workers, heads);
    parallel_release(&parallel);
    *size = saturating_add(saturating_multiply(scratch, workers), CACHE_LINE - 1);
    return FLASH_SUCCESS;
}

/* Says whether the problem's workspace suffices for joint tasks on that many threads, and they pay.
 */
static bool joins(const flash_kernel_t *dq, const flash_kernel_t *dkv, const problem_t *problem,
                  int32_t n_threads) {
    cpu_needs_t needs;
    if (!cpu_backward_joins(&dq->config, &dkv->config) ||
        joint_scratch(&dkv->config, &problem->params) > JOINT_MAX_BYTES)
        return false;
    backward_plan(BACKWARD_TASKS_OF_HEADS, &dkv->config, problem, n_threads, &needs);
    return joint_tasks_pay(&problem->params, n_threads) &&
           problem->workspace_size >= needs.workspace;
}

flash_status_t cpu_backward_run_joint(const flash_kernel_t *dq, const flash_kernel_t *dkv,
                                      const problem_t *problem, bool *is_done) {
    parallel_t parallel;
    flash_status_t status = FLASH_SUCCESS;
    FLASH_TRY(parallel_acquire(&problem->executor, &parallel));
    *is_done = joins(dq, dkv, problem, parallel.n_workers);
    if (*is_done)
        status = backward_run(BACKWARD_TASKS_OF_HEADS, dkv, problem, &parallel);
    parallel_release(&parallel);
    return status;
}
