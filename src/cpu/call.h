/*
 * A call on the CPU has work that all workers share.
 */
#ifndef FLASH_CPU_CALL_H
#define FLASH_CPU_CALL_H

#include "core/problem.h"
#include "cpu/countdown.h"
#include "cpu/plan.h"

#include <stdatomic.h>

/*
 * This is one flash_forward(), as its workers see it. Workers take its items in this order:
 *
 *     whole heads   all items of a head by one worker, `turns` heads at once, so that what it packs
 *                   stays in its own caches
 *     other heads   first the blocks of keys to pack, if its tasks share them, then the tasks;
 *                   if keys are split, the tasks of one split after the other
 *     merges        one per head whose keys are split
 *
 * An item waits only for items before it, which some worker has taken, so that calls always end.
 */
typedef struct cpu_call {
    flash_params_t params; /* of the problem; its lengths are copies in the workspace */
    cpu_kernel_t kernel;
    cpu_plan_t plan;
    int64_t *first_item;            /* [batch + 1] */
    atomic_int_least64_t *n_left;   /* [batch, n_heads_kv], items of a head still to do */
    countdown_sleepers_t *sleepers; /* wait for n_left to fall */
    float *o_partial;
    float *lse_partial;
    char *scratch;
    char *packed;              /* [plan.n_slots] */
    atomic_int_least64_t next; /* item to take */
} cpu_call_t;

/* Divides the workspace and counts the items. kernel and sleepers are set, and a plan that fits the
 * problem's workspace. */
void cpu_call_begin(cpu_call_t *call, const problem_t *problem);

/* Takes items until none is left, as worker `index`, 0 <= index < plan.n_workers. call: cpu_call_t.
 */
void cpu_call_work(void *call, int32_t index);

#endif
