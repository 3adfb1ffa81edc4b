#include "cpu/backward_tasks.h"

#include "config/kernel_table.h"
#include "core/int64.h"
#include "core/status.h"
#include "cpu/items.h"
#include "cpu/lengths.h"
#include "kernels/cpu/backward_kernel.h"

enum { SHARE_MIN_PAIRS = 1 << 12 }; /* pairs of a query and a key from which threads pay */

/* One launch of a kernel. */
typedef struct launch {
    const flash_config_t *config;
    cpu_backward_kernel_t kernel;
    const problem_t *problem;
    int64_t n_blocks; /* tasks of a K/V head of the longest sequence */
    char *scratch;
    uint64_t scratch_size; /* bytes per worker */
} launch_t;

/* ---- Tasks ---- */

static int64_t rows_of_head(const flash_params_t *p) {
    return (int64_t)p->seqlen_q * p->group;
}

/* Returns the tasks of a K/V head of a sequence with these lengths. */
static int64_t blocks_of(backward_tasks_t tasks, const flash_config_t *config, int32_t group,
                         cpu_longest_t lengths) {
    if (tasks == BACKWARD_TASKS_OF_HEADS)
        return 1;
    return tasks == BACKWARD_TASKS_OF_ROWS
               ? divide_up(lengths.queries * group, cpu_backward_task_rows(config))
               : divide_up(lengths.keys, config->B_c);
}

int64_t backward_heads(const flash_params_t *p) {
    return (int64_t)p->batch * p->n_heads_kv;
}

/* Returns the tasks of a launch at most. Sizes that no memory has may overflow 64 bits. */
static uint64_t count_tasks(backward_tasks_t tasks, const flash_config_t *config,
                            const flash_params_t *p) {
    const cpu_longest_t most = {p->seqlen_q, p->seqlen_k};
    return saturating_multiply((uint64_t)backward_heads(p),
                               (uint64_t)blocks_of(tasks, config, p->group, most));
}

/* Returns a task with all rows and keys of a head, which the caller narrows. */
static cpu_task_t task_of_head(const flash_params_t *p, int64_t head) {
    const int32_t b = (int32_t)(head / p->n_heads_kv);
    const flash_sequence_t sequence = flash_sequence(p, b);
    return (cpu_task_t){.sequence = sequence,
                        .batch_index = b,
                        .head_kv = (int32_t)(head % p->n_heads_kv),
                        .n_heads = 1,
                        .row_end = (int64_t)sequence.len_q * p->group,
                        .keys = {0, sequence.len_k}};
}

static void run_task(const launch_t *launch, const cpu_task_t *task, int32_t worker) {
    launch->kernel(&launch->problem->params, &launch->problem->gradients, task,
                   launch->scratch + (uint64_t)worker * launch->scratch_size);
}

/* The last rows come first: they see most keys in causal order. */
static void work_on_rows(void *context, int64_t item, int32_t worker) {
    const launch_t *launch = context;
    cpu_task_t task = task_of_head(&launch->problem->params, item / launch->n_blocks);
    const int64_t block = launch->n_blocks - 1 - item % launch->n_blocks;
    const int64_t rows = cpu_backward_task_rows(launch->config);
    task.row_begin = block * rows;
    task.row_end = min64(task.row_end, task.row_begin + rows);
    if (task.row_begin < task.row_end)
        run_task(launch, &task, worker);
}

/* The first keys come first: most rows see them in causal order. */
static void work_on_keys(void *context, int64_t item, int32_t worker) {
    const launch_t *launch = context;
    cpu_task_t task = task_of_head(&launch->problem->params, item / launch->n_blocks);
    const int64_t begin = item % launch->n_blocks * launch->config->B_c;
    const int64_t end = min64(task.keys.end, begin + launch->config->B_c);
    task.keys = (flash_range_t){(int32_t)begin, (int32_t)end};
    if (begin < end)
        run_task(launch, &task, worker);
}

static void work_on_head(void *context, int64_t item, int32_t worker) {
    const launch_t *launch = context;
    cpu_task_t task = task_of_head(&launch->problem->params, item);
    task.with_dq = true;
    run_task(launch, &task, worker);
}

/* ---- All tasks ---- */

uint64_t backward_scratch_size(backward_tasks_t tasks, const flash_config_t *config,
                               const flash_params_t *p) {
    const int64_t rows = rows_of_head(p);
    const int64_t dq_rows = tasks == BACKWARD_TASKS_OF_HEADS  ? rows
                            : tasks == BACKWARD_TASKS_OF_KEYS ? 0
                                                              : cpu_backward_task_rows(config);
    return cpu_backward_scratch_size(config, p, min64(rows, dq_rows));
}

void backward_plan(backward_tasks_t tasks, const flash_config_t *config, const problem_t *problem,
                   int32_t n_threads, cpu_needs_t *needs) {
    const flash_params_t *p = &problem->params;
    const uint64_t scratch = backward_scratch_size(tasks, config, p);
    const uint64_t n_tasks = max_u64(count_tasks(tasks, config, p), 1);
    const double pairs = (double)p->batch * p->n_heads * p->seqlen_q * p->seqlen_k;
    const uint64_t workers = pairs < SHARE_MIN_PAIRS ? 1 : min_u64((uint64_t)n_threads, n_tasks);
    *needs = (cpu_needs_t){
        .workspace = saturating_add(saturating_multiply(scratch, workers), CACHE_LINE - 1),
        .least_workspace = scratch + CACHE_LINE - 1,
        .n_workers = (int32_t)workers};
}

flash_status_t backward_run(backward_tasks_t tasks, const flash_kernel_t *kernel,
                            const problem_t *problem, parallel_t *parallel) {
    static void (*const WORK[])(void *, int64_t, int32_t) = {work_on_rows, work_on_keys,
                                                             work_on_head};
    const flash_params_t *p = &problem->params;
    cpu_needs_t needs;
    backward_plan(tasks, &kernel->config, problem, parallel->n_workers, &needs);
    FLASH_TRY(cpu_check_workspace(problem, &needs));
    char *begin = problem->workspace;
    char *scratch = (char *)(((uintptr_t)begin + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    const uint64_t room = problem->workspace_size - (uint64_t)(scratch - begin);
    launch_t launch = {.config = &kernel->config,
                       .kernel = (cpu_backward_kernel_t)kernel->function,
                       .problem = problem,
                       .n_blocks =
                           blocks_of(tasks, &kernel->config, p->group, cpu_lengths_longest(p)),
                       .scratch = scratch,
                       .scratch_size = backward_scratch_size(tasks, &kernel->config, p)};
    const cpu_items_t items = {
        .n = backward_heads(p) * launch.n_blocks, .work = WORK[tasks], .context = &launch};
    const uint64_t fit = launch.scratch_size > 0 ? room / launch.scratch_size : UINT64_MAX;
    cpu_items_run(parallel, (int32_t)min_u64(fit, (uint64_t)needs.n_workers), &items);
    return FLASH_SUCCESS;
}
