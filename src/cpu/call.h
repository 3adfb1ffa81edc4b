/*
 * The work of a call on the CPU, and the workers that share it.
 */
#ifndef FLASH_CPU_CALL_H
#define FLASH_CPU_CALL_H

#include "core/problem.h"
#include "cpu/countdown.h"
#include "cpu/plan.h"

#include <stdatomic.h>

/*
 * One flash_forward(), as its workers see it. The work is a sequence of items, sequence after
 * sequence and K/V head after K/V head: first the blocks of keys to pack, where the head's tasks
 * share them, then the tasks; where the keys are split, the tasks of split after split. Of whole
 * heads, which come first, a worker takes all items at once, of several heads by turns: what it
 * packs is in its own caches then. Last come the heads whose splits are to be merged. The workers
 * take items in this order, so that an item that waits for others waits for work that some thread
 * is at.
 */
typedef struct cpu_call {
    flash_params_t params; /* the problem's, with lengths in the workspace */
    cpu_kernel_t kernel;
    cpu_plan_t plan;
    int32_t n_workers;
    int64_t n_slots;
    int64_t n_whole;                /* heads */
    int64_t turns;                  /* of them, by turns */
    int64_t *first_item;            /* [batch + 1] */
    atomic_int_least64_t *n_left;   /* [batch, n_heads_kv], items of the head that are not done */
    countdown_sleepers_t *sleepers; /* until some of n_left fall */
    float *o_partial;
    float *lse_partial;
    char *scratch;
    char *packed;              /* [n_slots] */
    atomic_int_least64_t next; /* item */
} cpu_call_t;

/* Lays the call out for so many workers. kernel, plan and sleepers are set; the problem's
 * workspace is at least as large as cpu_plan_least_workspace() says. */
void cpu_call_begin(cpu_call_t *call, const problem_t *problem, int32_t n_workers);

/* What each worker does, 0 <= index < n_workers: takes whole heads and items until there are no
 * more. `call`: a cpu_call_t. */
void cpu_call_work(void *call, int32_t index);

#endif
