/*
 * This file runs a call's work items (call.h) on its workers.
 */
#include "cpu/call.h"

#include "cpu/lengths.h"
#include "cpu/merge.h"

/* ---- Places in the workspace ---- */

static int64_t head_index(const cpu_call_t *call, int32_t batch_index, int32_t head_kv) {
    return (int64_t)batch_index * call->params.n_heads_kv + head_kv;
}

/* A head is numbered in [batch, n_heads_kv]; these return its batch entry and its K/V head. */
static int32_t batch_index_of(const cpu_call_t *call, int64_t head) {
    return (int32_t)(head / call->params.n_heads_kv);
}

static int32_t head_kv_of(const cpu_call_t *call, int64_t head) {
    return (int32_t)(head % call->params.n_heads_kv);
}

static cpu_cut_t cut_of(const cpu_call_t *call, int32_t batch_index) {
    const cpu_plan_t *plan = &call->plan;
    return cpu_cut_sequence(plan->family, plan->config, &call->params, plan->rows_per_task,
                            batch_index);
}

/* Returns the first row of a head's partial results in [batch, n_heads_kv, partial_rows]. */
static int64_t partial_row(const cpu_call_t *call, int32_t batch_index, int32_t head_kv) {
    return head_index(call, batch_index, head_kv) * call->plan.partial_rows;
}

/* ---- Items ---- */

/* Returns the sequence b that has item i: first_item[b] <= i < first_item[b + 1]. */
static int32_t find_sequence(const cpu_call_t *call, int64_t i) {
    int32_t low = 0, high = call->params.batch;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (call->first_item[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns the slot of a head that is not whole. Whole heads, if there are any, have the first
 * `turns` slots of each worker, and every other head has one behind them. */
static int64_t slot_of(const cpu_call_t *call, int64_t head) {
    return call->plan.n_whole > 0
               ? call->plan.n_workers * call->plan.turns + head - call->plan.n_whole
               : head % call->plan.n_slots;
}

/* Waits until at most n_left items of the head are still to be done. */
static void wait_for(const cpu_call_t *call, int64_t head, int64_t n_left) {
    countdown_wait(&call->n_left[head], n_left, call->sleepers);
}

/* Marks an item of the head as done. Others wait for two counts: n_tasks (all is packed), and 0. */
static void finish_item(const cpu_call_t *call, int64_t head, int64_t n_tasks) {
    const int64_t n_left = atomic_fetch_sub(&call->n_left[head], 1) - 1;
    if (n_left == n_tasks || n_left == 0)
        countdown_tell(call->sleepers);
}

static bool packs(const cpu_call_t *call, int64_t head) {
    return cut_of(call, batch_index_of(call, head)).n_packs > 0;
}

/* Waits until the slot is free, that is until the head that used it before is done; that head has
 * waited for the one before it. Beside whole heads each head has a slot of its own. */
static void wait_for_slot(const cpu_call_t *call, int64_t head) {
    int64_t before = call->plan.n_whole > 0 ? -1 : head - call->plan.n_slots;
    while (before >= 0 && !packs(call, before))
        before -= call->plan.n_slots;
    if (before >= 0)
        wait_for(call, before, 0);
}

static int64_t n_items_of_head(const cpu_cut_t *cut) {
    return cut->n_packs + cut->n_tasks_per_head;
}

/* Runs one item of a head, packing a block of keys or a task. */
static void run_item_of_head(const cpu_call_t *call, const cpu_cut_t *cut, int64_t head,
                             int64_t item, int64_t slot, void *scratch) {
    const int32_t b = batch_index_of(call, head), head_kv = head_kv_of(call, head);
    cpu_task_t task;
    if (item < cut->n_packs) {
        task = cpu_plan_pack(&call->plan, cut, b, head_kv, item);
    } else {
        task = cpu_plan_row_task(&call->plan, &call->params, cut, b, head_kv, item - cut->n_packs);
        wait_for(call, head, cut->n_tasks_per_head);
    }
    if (cut->n_packs > 0)
        task.packed = call->packed + (uint64_t)slot * call->plan.packed_size;
    call->kernel(&call->params, &task, scratch);
    finish_item(call, head, cut->n_tasks_per_head);
}

static void run_task(const cpu_call_t *call, const cpu_cut_t *cut, int32_t b, int64_t item,
                     void *scratch) {
    const int64_t n_items = n_items_of_head(cut), index = item % n_items;
    const int64_t head = head_index(call, b, (int32_t)(item / n_items));
    if (index < cut->n_packs)
        wait_for_slot(call, head);
    run_item_of_head(call, cut, head, index, cut->n_packs > 0 ? slot_of(call, head) : 0, scratch);
}

/* Runs whole heads from `first` on, an item of each in turn. They all have the same items. */
static void run_whole_heads(const cpu_call_t *call, int64_t first, int64_t worker, void *scratch) {
    const cpu_cut_t cut = cut_of(call, batch_index_of(call, first));
    for (int64_t item = 0; item < n_items_of_head(&cut); item++)
        for (int64_t i = 0; i < call->plan.turns; i++)
            run_item_of_head(call, &cut, first + i, item, worker * call->plan.turns + i, scratch);
}

/* Runs an item of a sequence whose keys are split. The task prefetches for the item that its thread
 * most likely takes next, n_workers items on. */
static void run_split(const cpu_call_t *call, const cpu_cut_t *cut, int32_t b, int64_t item,
                      void *scratch) {
    const flash_params_t *p = &call->params;
    cpu_task_t task = cpu_plan_split_task(&call->plan, p, cut, b, item);
    const cpu_task_t next =
        cpu_plan_split_task(&call->plan, p, cut, b, item + call->plan.n_workers);
    const int64_t split = (task.keys.begin - cut->keys.begin) / cut->keys_per_split;
    const int64_t row = partial_row(call, b, task.head_kv) + split * cut->n_rows;
    if (next.n_heads == task.n_heads) /* it prefetches as many rows as it reads */
        task.prefetch = (cpu_prefetch_t){next.keys, next.head_kv};
    task.o_partial = call->o_partial + row * p->d_head_v;
    task.lse_partial = call->lse_partial + row;
    call->kernel(p, &task, scratch);
    for (int32_t i = 0; i < task.n_heads; i++)
        finish_item(call, head_index(call, b, task.head_kv + i), 0);
}

/* Merges the splits of a head, if it has any, in their order. */
static void run_merge(const cpu_call_t *call, int64_t head) {
    const int32_t b = batch_index_of(call, head), head_kv = head_kv_of(call, head);
    const cpu_cut_t cut = cut_of(call, b);
    if (cut.n_splits == 1)
        return;
    const int64_t row = partial_row(call, b, head_kv);
    const cpu_partials_t partials = {call->o_partial + row * call->params.d_head_v,
                                     call->lse_partial + row};
    wait_for(call, head, 0);
    cpu_merge_splits(&call->params, &cut, b, head_kv, &partials);
}

static int64_t n_items_of(const cpu_call_t *call, const cpu_cut_t *cut, int32_t batch_index) {
    if (cut->n_splits > 1)
        return cpu_plan_n_split_tasks(&call->plan, &call->params, cut, batch_index);
    return n_items_of_head(cut) * call->params.n_heads_kv;
}

static int64_t n_merges(const cpu_call_t *call) {
    return call->plan.max_splits > 1 ? head_index(call, call->params.batch, 0) : 0;
}

static void run_item(const cpu_call_t *call, int64_t i, void *scratch) {
    const int64_t n_tasks = call->first_item[call->params.batch];
    if (i >= n_tasks) {
        run_merge(call, i - n_tasks);
        return;
    }
    const int32_t b = find_sequence(call, i);
    const cpu_cut_t cut = cut_of(call, b);
    if (cut.n_splits > 1)
        run_split(call, &cut, b, i - call->first_item[b], scratch);
    else
        run_task(call, &cut, b, i - call->first_item[b], scratch);
}

/* Counts the items of the whole heads, which all have the same number. */
static int64_t n_items_of_whole(const cpu_call_t *call) {
    return call->plan.n_whole * (call->first_item[1] / call->params.n_heads_kv);
}

void cpu_call_work(void *argument, int32_t index) {
    cpu_call_t *call = argument;
    char *scratch = call->scratch + (uint64_t)index * call->plan.scratch_size;
    const int64_t n_rounds = call->plan.n_whole / call->plan.turns;
    const int64_t first = n_rounds > 0 ? n_items_of_whole(call) : 0;
    const int64_t n_items = call->first_item[call->params.batch] - first + n_merges(call);
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (i >= n_rounds + n_items)
            return;
        if (i < n_rounds)
            run_whole_heads(call, i * call->plan.turns, index, scratch);
        else
            run_item(call, first + i - n_rounds, scratch);
    }
}

/* ---- Layout ---- */

static void count_items(cpu_call_t *call) {
    const flash_params_t *p = &call->params;
    call->first_item[0] = 0;
    for (int32_t b = 0; b < p->batch; b++) {
        const cpu_cut_t cut = cut_of(call, b);
        const int64_t n_of_head = n_items_of_head(&cut);
        call->first_item[b + 1] = call->first_item[b] + n_items_of(call, &cut, b);
        for (int32_t head = 0; head < p->n_heads_kv; head++)
            atomic_init(&call->n_left[head_index(call, b, head)], n_of_head);
    }
}

void cpu_call_begin(cpu_call_t *call, const problem_t *problem) {
    char *base = (char *)(((uintptr_t)problem->workspace + 63) & ~(uintptr_t)63);
    const cpu_totals_t totals = {problem->total_q, problem->total_k, problem->page_limits};
    call->params = problem->params;
    cpu_lengths_copy(&call->params, &totals, base + call->plan.lengths_at);
    call->first_item = (int64_t *)base;
    call->n_left = (atomic_int_least64_t *)(base + call->plan.n_left_at);
    call->o_partial = (float *)(base + call->plan.o_partial_at);
    call->lse_partial = (float *)(base + call->plan.lse_partial_at);
    call->scratch = base + call->plan.scratch_at;
    call->packed = call->scratch + (uint64_t)call->plan.n_workers * call->plan.scratch_size;
    count_items(call);
}
