/*
 * Sharing a problem's tasks among threads.
 */
#include "launch_cpu.h"

#include "config.h"
#include "cpu/combine.h"
#include "cpu_plan.h"
#include "kernel_table.h"
#include "status.h"
#include "thread_pool.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

/* One flash_forward(), as its workers see it. */
typedef struct call {
    const flash_params_t *params;
    cpu_kernel_t kernel;
    int32_t dtype;
    cpu_plan_t plan;
    int64_t *first_task; /* [batch + 1] */
    char *packed;
    float *o_partial;
    float *lse_partial;
    char *scratch;
    atomic_int_least64_t next; /* task, block to pack, or head to merge */
    int64_t end;               /* of the tasks, or of the heads to pack */
} call_t;

/* ---- Tasks ---- */

/* Where the partial results of a split lie: its row in [batch, n_heads_kv, max_splits, max_rows].
 */
static int64_t partial_row(const call_t *call, int32_t batch_index, int32_t head_kv,
                           int64_t split) {
    const int64_t head = (int64_t)batch_index * call->params->n_heads_kv + head_kv;
    return (head * call->plan.max_splits + split) * call->plan.max_rows;
}

/* The sequence that holds task t: first_task[b] <= t < first_task[b + 1]. */
static int32_t find_sequence(const call_t *call, int64_t t) {
    int32_t low = 0, high = call->params->batch;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (call->first_task[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Where the packed keys of the head number `head` of [batch, n_heads_kv] lie. */
static void *packed_at(const call_t *call, int64_t head) {
    const int64_t slot = head % call->plan.packed_heads;
    return call->packed + (uint64_t)slot * call->plan.packed_size;
}

static void run_task(const call_t *call, int64_t t, void *scratch) {
    const int32_t B_r = call->plan.config->B_r;
    const int32_t b = find_sequence(call, t);
    const cpu_cut_t cut = cpu_cut_sequence(call->params, B_r, b);
    const int64_t of_sequence = t - call->first_task[b];
    const int32_t n_heads_kv = call->params->n_heads_kv;
    /* The heads' keys lie side by side: a range of keys is read for all heads before the next one,
     * whose memory pages are others. */
    const bool by_keys = cut.n_splits > 1;
    const int32_t head_kv =
        (int32_t)(by_keys ? of_sequence % n_heads_kv : of_sequence / cut.n_tasks_per_head);
    const int64_t index = by_keys ? of_sequence / n_heads_kv : of_sequence % cut.n_tasks_per_head;
    cpu_task_t task = cpu_cut_task(call->params, B_r, &cut, b, head_kv, index);
    if (cpu_plan_packs(&call->plan, &cut))
        task.packed = packed_at(call, (int64_t)b * call->params->n_heads_kv + head_kv);
    if (cut.n_splits > 1) {
        const int64_t row = partial_row(call, b, head_kv, index);
        task.o_partial = call->o_partial + row * call->params->d_head;
        task.lse_partial = call->lse_partial + row;
    }
    call->kernel(call->params, &task, scratch);
}

/* Takes the next task until there are no more. */
static void work(void *argument, int32_t index) {
    call_t *call = argument;
    char *scratch = call->scratch + (uint64_t)index * call->plan.scratch_size;
    for (;;) {
        const int64_t t = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (t >= call->end)
            return;
        run_task(call, t, scratch);
    }
}

/* ---- Packing ---- */

static void pack_block(const call_t *call, int64_t head, int64_t block, void *scratch) {
    const int32_t b = (int32_t)(head / call->params->n_heads_kv);
    const cpu_cut_t cut = cpu_cut_sequence(call->params, call->plan.config->B_r, b);
    cpu_task_t task = {.sequence = cut.sequence,
                       .batch_index = b,
                       .head_kv = (int32_t)(head % call->params->n_heads_kv),
                       .packed = packed_at(call, head)};
    if (cpu_plan_packs(&call->plan, &cut) && cpu_plan_pack_task(&call->plan, &cut, block, &task))
        call->kernel(call->params, &task, scratch);
}

/* Takes the next block of heads' keys until there are no more. */
static void pack(void *argument, int32_t index) {
    call_t *call = argument;
    char *scratch = call->scratch + (uint64_t)index * call->plan.scratch_size;
    const int64_t n_blocks = cpu_plan_blocks(&call->plan, call->params);
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (i / n_blocks >= call->end)
            return;
        pack_block(call, i / n_blocks, i % n_blocks, scratch);
    }
}

/* ---- Merging splits ---- */

static void store_lse(const call_t *call, const cpu_cut_t *cut, int32_t batch_index, int64_t head,
                      int64_t query, float lse) {
    const flash_params_t *p = call->params;
    if (p->lse == NULL)
        return;
    const int64_t index = flash_lse_index(p, &cut->sequence, batch_index, (int32_t)head, query);
    memcpy((char *)p->lse + index * (int64_t)sizeof lse, &lse, sizeof lse);
}

static void merge_row(const call_t *call, const cpu_cut_t *cut, int32_t batch_index,
                      int32_t head_kv, int64_t row) {
    const flash_params_t *p = call->params;
    const int64_t first = partial_row(call, batch_index, head_kv, 0) + row;
    const combine_partials_t partials = {.o = call->o_partial + first * p->d_head,
                                         .dtype = FLASH_DTYPE_FP32,
                                         .o_stride = (int64_t)call->plan.max_rows * p->d_head,
                                         .lse = call->lse_partial + first,
                                         .lse_stride = call->plan.max_rows,
                                         .n_partials = cut->n_splits};
    const int64_t query = row / p->group;
    const int64_t head = (int64_t)head_kv * p->group + row % p->group;
    const int64_t at = batch_index * p->o_stride.batch +
                       (cut->sequence.q_begin + query) * p->o_stride.seq + head * p->o_stride.head;
    char *o = (char *)p->o + at * dtype_size(call->dtype);
    const float lse = combine_row(&partials, p->d_head, o, call->dtype);
    store_lse(call, cut, batch_index, head, query, lse);
}

static void merge(void *argument, int32_t index) {
    call_t *call = argument;
    const flash_params_t *p = call->params;
    const int64_t n_heads = (int64_t)p->batch * p->n_heads_kv;
    (void)index;
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (i >= n_heads)
            return;
        const int32_t b = (int32_t)(i / p->n_heads_kv);
        const cpu_cut_t cut = cpu_cut_sequence(p, call->plan.config->B_r, b);
        for (int64_t row = 0; cut.n_splits > 1 && row < cut.n_rows; row++)
            merge_row(call, &cut, b, (int32_t)(i % p->n_heads_kv), row);
    }
}

/* ---- The call ---- */

static void count_tasks(call_t *call) {
    const flash_params_t *p = call->params;
    call->first_task[0] = 0;
    for (int32_t b = 0; b < p->batch; b++) {
        const cpu_cut_t cut = cpu_cut_sequence(p, call->plan.config->B_r, b);
        call->first_task[b + 1] = call->first_task[b] + cut.n_tasks_per_head * p->n_heads_kv;
    }
}

static void set_workspace(call_t *call, void *workspace) {
    char *base = (char *)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    call->first_task = (int64_t *)base;
    call->packed = base + call->plan.packed_at;
    call->o_partial = (float *)(base + call->plan.o_partial_at);
    call->lse_partial = (float *)(base + call->plan.lse_partial_at);
    call->scratch = base + call->plan.scratch_at;
}

/* The first task of head number `head` of [batch, n_heads_kv]. */
static int64_t first_task_of(const call_t *call, int64_t head) {
    const int64_t b = head / call->params->n_heads_kv,
                  of_sequence = head % call->params->n_heads_kv;
    const int64_t first = call->first_task[b];
    if (of_sequence == 0)
        return first;
    return first + (call->first_task[b + 1] - first) / call->params->n_heads_kv * of_sequence;
}

/* As many heads at a time as the workspace holds packed keys of: first these, then the tasks. */
static void run_packed(call_t *call, parallel_t *parallel, int32_t n_workers) {
    const int64_t n_heads = (int64_t)call->params->batch * call->params->n_heads_kv;
    const int64_t n_blocks = cpu_plan_blocks(&call->plan, call->params);
    for (int64_t head = 0; head < n_heads; head += call->plan.packed_heads) {
        const int64_t left = n_heads - head, fitting = call->plan.packed_heads;
        const int64_t last = head + (left < fitting ? left : fitting);
        call->end = last;
        atomic_store(&call->next, head * n_blocks);
        parallel_for(parallel, n_workers, pack, call);
        call->end = first_task_of(call, last);
        atomic_store(&call->next, first_task_of(call, head));
        parallel_for(parallel, n_workers, work, call);
    }
}

static void run_tasks(call_t *call, parallel_t *parallel, int32_t n_workers) {
    if (call->plan.packed_heads > 0) {
        run_packed(call, parallel, n_workers);
    } else {
        call->end = call->first_task[call->params->batch];
        parallel_for(parallel, n_workers, work, call);
    }
}

static flash_status_t run(const flash_kernel_t *kernel, const problem_t *problem,
                          parallel_t *parallel) {
    call_t call = {.params = &problem->params,
                   .kernel = (cpu_kernel_t)kernel->function,
                   .dtype = problem->dtype};
    FLASH_TRY(cpu_plan_make(&kernel->config, call.params, parallel->n_workers, &call.plan));
    const int32_t n_workers = cpu_plan_workers(&call.plan, problem->workspace_size);
    FLASH_REQUIRE(problem->workspace != NULL || problem->workspace_size == 0,
                  FLASH_ERROR_INVALID_ARGUMENT, "workspace is NULL, and workspace_size is %" PRIu64,
                  problem->workspace_size);
    FLASH_REQUIRE(n_workers > 0, FLASH_ERROR_WORKSPACE_TOO_SMALL,
                  "workspace_size is %" PRIu64 ": needs %" PRIu64 " bytes (%" PRIu64
                  " with one thread)",
                  problem->workspace_size, cpu_plan_workspace(&call.plan, call.plan.max_workers),
                  cpu_plan_workspace(&call.plan, 1));
    set_workspace(&call, problem->workspace);
    count_tasks(&call);
    run_tasks(&call, parallel, n_workers);
    if (call.plan.max_splits > 1) {
        atomic_store(&call.next, 0);
        parallel_for(parallel, n_workers, merge, &call);
    }
    return FLASH_SUCCESS;
}

flash_status_t launch_cpu(const flash_kernel_t *kernel, const problem_t *problem) {
    parallel_t parallel;
    FLASH_TRY(parallel_acquire(&parallel));
    const flash_status_t status = run(kernel, problem, &parallel);
    parallel_release(&parallel);
    return status;
}

flash_status_t launch_cpu_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                    uint64_t *size) {
    parallel_t parallel;
    cpu_plan_t plan;
    FLASH_TRY(parallel_acquire(&parallel));
    const flash_status_t status =
        cpu_plan_make(&kernel->config, &problem->params, parallel.n_workers, &plan);
    parallel_release(&parallel);
    FLASH_TRY(status);
    *size = problem->has_output ? cpu_plan_workspace(&plan, plan.max_workers) : 0;
    return FLASH_SUCCESS;
}

flash_status_t launch_cpu_prepare(const flash_kernel_t *kernel, const problem_t *problem) {
    parallel_t parallel;
    cpu_plan_t plan;
    FLASH_TRY(parallel_acquire(&parallel));
    const flash_status_t status =
        cpu_plan_make(&kernel->config, &problem->params, parallel.n_workers, &plan);
    if (status == FLASH_SUCCESS && plan.max_workers > 1)
        parallel_start(&parallel);
    parallel_release(&parallel);
    return status;
}
