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
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/*
 * One flash_forward(), as its workers see it. The work is a sequence of items, sequence after
 * sequence and K/V head after K/V head: first the blocks of keys to pack, where the head's tasks
 * share them, then the tasks; where the keys are split, the tasks of split after split. Of whole
 * heads, which come first, a worker takes all items at once: what it packs is in its own caches
 * then. Last come the heads whose splits are to be merged. The workers take items in this order, so
 * that an item that waits for others waits for work that some thread is at.
 */
typedef struct call {
    const flash_params_t *params;
    cpu_kernel_t kernel;
    int32_t dtype;
    cpu_plan_t plan;
    int32_t n_workers;
    int64_t n_slots;
    int64_t n_whole;              /* heads */
    int64_t *first_item;          /* [batch + 1] */
    atomic_int_least64_t *n_left; /* [batch, n_heads_kv], items of the head that are not done */
    float *o_partial;
    float *lse_partial;
    char *scratch;
    char *packed;              /* [n_slots] */
    atomic_int_least64_t next; /* item */
} call_t;

/* ---- Places in the workspace ---- */

static int64_t head_index(const call_t *call, int32_t batch_index, int32_t head_kv) {
    return (int64_t)batch_index * call->params->n_heads_kv + head_kv;
}

/* Where the partial results of a split lie: its row in [batch, n_heads_kv, max_splits, max_rows].
 */
static int64_t partial_row(const call_t *call, int32_t batch_index, int32_t head_kv,
                           int64_t split) {
    const int64_t head = head_index(call, batch_index, head_kv);
    return (head * call->plan.max_splits + split) * call->plan.max_rows;
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

/* ---- Items ---- */

/* The sequence that holds item i: first_item[b] <= i < first_item[b + 1]. */
static int32_t find_sequence(const call_t *call, int64_t i) {
    int32_t low = 0, high = call->params->batch;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (call->first_item[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Where the packed keys of the head number `head` of [batch, n_heads_kv], which is not whole, lie:
 * behind those of whole heads, which have a slot a worker. */
static int64_t slot_of(const call_t *call, int64_t head) {
    return call->n_whole > 0 ? call->n_workers + head - call->n_whole : head % call->n_slots;
}

/* Until at most so many items of the head are not done. */
static void wait_for(const call_t *call, int64_t head, int64_t n_left) {
    while (atomic_load_explicit(&call->n_left[head], memory_order_acquire) > n_left)
        sched_yield();
}

static void finish_item(const call_t *call, int64_t head) {
    atomic_fetch_sub_explicit(&call->n_left[head], 1, memory_order_release);
}

static bool packs(const call_t *call, int64_t head) {
    const int32_t b = (int32_t)(head / call->params->n_heads_kv);
    const cpu_cut_t cut = cpu_cut_sequence(call->params, call->plan.config->B_r, b);
    return cpu_plan_n_packs(&call->plan, &cut) > 0;
}

/* Until the head that packed into the same slot before is done; it waited for those before it.
 * Beside whole heads each has a slot of its own. */
static void wait_for_slot(const call_t *call, int64_t head) {
    int64_t before = call->n_whole > 0 ? -1 : head - call->n_slots;
    while (before >= 0 && !packs(call, before))
        before -= call->n_slots;
    if (before >= 0)
        wait_for(call, before, 0);
}

/* Items of a head whose keys are not split. */
static int64_t n_items_of_head(const call_t *call, const cpu_cut_t *cut) {
    return cpu_plan_n_packs(&call->plan, cut) + cut->n_tasks_per_head;
}

/* One of them: a block of keys to pack, or a task. */
static void run_item_of_head(const call_t *call, const cpu_cut_t *cut, int64_t head, int64_t item,
                             int64_t slot, void *scratch) {
    const int32_t b = (int32_t)(head / call->params->n_heads_kv);
    const int32_t head_kv = (int32_t)(head % call->params->n_heads_kv);
    const int64_t n_packs = cpu_plan_n_packs(&call->plan, cut);
    cpu_task_t task;
    if (item < n_packs) {
        task = cpu_plan_pack(&call->plan, cut, b, head_kv, item);
    } else {
        task = cpu_cut_task(call->params, call->plan.config->B_r, cut, b, head_kv, item - n_packs);
        wait_for(call, head, cut->n_tasks_per_head);
    }
    if (n_packs > 0)
        task.packed = call->packed + (uint64_t)slot * call->plan.packed_size;
    call->kernel(call->params, &task, scratch);
    finish_item(call, head);
}

/* Item of a sequence whose keys are not split. */
static void run_task(const call_t *call, const cpu_cut_t *cut, int32_t b, int64_t item,
                     void *scratch) {
    const int64_t n_items = n_items_of_head(call, cut), index = item % n_items;
    const int64_t n_packs = cpu_plan_n_packs(&call->plan, cut);
    const int64_t head = head_index(call, b, (int32_t)(item / n_items));
    if (index < n_packs)
        wait_for_slot(call, head);
    run_item_of_head(call, cut, head, index, n_packs > 0 ? slot_of(call, head) : 0, scratch);
}

static void run_whole_head(const call_t *call, int64_t head, int64_t worker, void *scratch) {
    const cpu_cut_t cut = cpu_cut_sequence(call->params, call->plan.config->B_r,
                                           (int32_t)(head / call->params->n_heads_kv));
    for (int64_t item = 0; item < n_items_of_head(call, &cut); item++)
        run_item_of_head(call, &cut, head, item, worker, scratch);
}

/* Item of a sequence whose keys are split. A thread's next item is most likely n_workers items on.
 */
static void run_split(const call_t *call, const cpu_cut_t *cut, int32_t b, int64_t item,
                      void *scratch) {
    const flash_params_t *p = call->params;
    cpu_task_t task = cpu_plan_split_task(&call->plan, p, cut, b, item);
    const cpu_task_t next = cpu_plan_split_task(&call->plan, p, cut, b, item + call->n_workers);
    const int64_t split = (task.keys.begin - cut->keys.begin) / cut->keys_per_split;
    const int64_t row = partial_row(call, b, task.head_kv, split);
    task.ahead = (cpu_ahead_t){next.keys, next.head_kv};
    task.o_partial = call->o_partial + row * p->d_head;
    task.lse_partial = call->lse_partial + row;
    call->kernel(p, &task, scratch);
    for (int32_t i = 0; i < task.n_heads; i++)
        finish_item(call, head_index(call, b, task.head_kv + i));
}

/* Merges the splits of the head number `head` of [batch, n_heads_kv], if it has any, in their
 * order. */
static void run_merge(const call_t *call, int64_t head) {
    const int32_t b = (int32_t)(head / call->params->n_heads_kv);
    const int32_t head_kv = (int32_t)(head % call->params->n_heads_kv);
    const cpu_cut_t cut = cpu_cut_sequence(call->params, call->plan.config->B_r, b);
    if (cut.n_splits == 1)
        return;
    wait_for(call, head, 0);
    for (int64_t row = 0; row < cut.n_rows; row++)
        merge_row(call, &cut, b, head_kv, row);
}

static int64_t n_items_of(const call_t *call, const cpu_cut_t *cut) {
    if (cut->n_splits > 1)
        return cpu_plan_n_split_tasks(&call->plan, call->params, cut);
    return n_items_of_head(call, cut) * call->params->n_heads_kv;
}

static int64_t n_merges(const call_t *call) {
    return call->plan.max_splits > 1 ? head_index(call, call->params->batch, 0) : 0;
}

static void run_item(const call_t *call, int64_t i, void *scratch) {
    const int64_t n_tasks = call->first_item[call->params->batch];
    if (i >= n_tasks) {
        run_merge(call, i - n_tasks);
        return;
    }
    const int32_t b = find_sequence(call, i);
    const cpu_cut_t cut = cpu_cut_sequence(call->params, call->plan.config->B_r, b);
    if (cut.n_splits > 1)
        run_split(call, &cut, b, i - call->first_item[b], scratch);
    else
        run_task(call, &cut, b, i - call->first_item[b], scratch);
}

/* Items of the whole heads: where there are any, all heads have as many. */
static int64_t n_items_of_whole(const call_t *call) {
    return call->n_whole * (call->first_item[1] / call->params->n_heads_kv);
}

/* Takes the next whole head or item until there are no more. */
static void work(void *argument, int32_t index) {
    call_t *call = argument;
    char *scratch = call->scratch + (uint64_t)index * call->plan.scratch_size;
    const int64_t n_whole = call->n_whole, first = n_whole > 0 ? n_items_of_whole(call) : 0;
    const int64_t n_items = call->first_item[call->params->batch] - first + n_merges(call);
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (i >= n_whole + n_items)
            return;
        if (i < n_whole)
            run_whole_head(call, i, index, scratch);
        else
            run_item(call, first + i - n_whole, scratch);
    }
}

/* ---- The call ---- */

static void count_items(call_t *call) {
    const flash_params_t *p = call->params;
    call->first_item[0] = 0;
    for (int32_t b = 0; b < p->batch; b++) {
        const cpu_cut_t cut = cpu_cut_sequence(p, call->plan.config->B_r, b);
        const int64_t n_of_head = n_items_of_head(call, &cut);
        call->first_item[b + 1] = call->first_item[b] + n_items_of(call, &cut);
        for (int32_t head = 0; head < p->n_heads_kv; head++)
            atomic_init(&call->n_left[head_index(call, b, head)], n_of_head);
    }
}

static void set_workspace(call_t *call, void *workspace, int32_t n_workers) {
    char *base = (char *)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    call->first_item = (int64_t *)base;
    call->n_left = (atomic_int_least64_t *)(base + call->plan.n_left_at);
    call->o_partial = (float *)(base + call->plan.o_partial_at);
    call->lse_partial = (float *)(base + call->plan.lse_partial_at);
    call->scratch = base + call->plan.scratch_at;
    call->packed = call->scratch + (uint64_t)n_workers * call->plan.scratch_size;
    call->n_workers = n_workers;
    call->n_slots = cpu_plan_slots(&call->plan, n_workers);
    call->n_whole = cpu_plan_whole_heads(&call->plan, call->params, n_workers);
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
    set_workspace(&call, problem->workspace, n_workers);
    count_items(&call);
    parallel_for(parallel, n_workers, work, &call);
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
