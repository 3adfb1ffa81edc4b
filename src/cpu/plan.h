/*
 * How workers share the tasks of a problem on the CPU, and what memory they need for it.
 */
#ifndef FLASH_CPU_PLAN_H
#define FLASH_CPU_PLAN_H

#include "cpu/cut.h"
#include "cpu/way.h"
#include "cpu/workspace.h"
#include "flashattn.h"

/*
 * What the workspace holds, from shapes and the number of workers alone:
 *   first_item  int64 [batch + 1], items of work before each sequence
 *   lengths     int32, copies of the call's lengths and rows of pages (lengths.h)
 *   n_left      int64 [batch, n_heads_kv], a head's items that are not done
 *   o_partial   fp32  [batch, n_heads_kv, partial_rows, d_head]
 *   lse_partial fp32  [batch, n_heads_kv, partial_rows]
 *   scratch           [n_workers] of scratch_size bytes
 *   packed            [cpu_plan_slots()] of packed_size bytes: K and V of so many heads at a time
 * each from a multiple of 64 bytes on. What is left of it beyond these is for smaller problems
 * (workspace.h).
 */
typedef struct cpu_plan {
    const flash_config_t *config;
    const cpu_family_t *family;
    int64_t max_slots;      /* 0: no sequence's tasks share packed keys */
    int64_t max_turns;      /* heads that a worker takes by turns at most */
    uint64_t packed_size;   /* bytes a head */
    int32_t rows_per_task;  /* B_r, a part of it, or several */
    int32_t max_splits;     /* 1: no sequence can be split */
    int32_t heads_together; /* K/V heads of a task of a sequence that is split, or fewer */
    int64_t max_rows;       /* packed rows of a sequence that is split */
    int64_t partial_rows;   /* of partial results, for each head */
    int32_t max_workers;
    uint64_t lengths_at; /* bytes from the aligned start of the workspace */
    uint64_t n_left_at;
    uint64_t o_partial_at;
    uint64_t lse_partial_at;
    uint64_t scratch_at;
    uint64_t scratch_size;    /* bytes per worker */
    uint64_t least_workspace; /* bytes: cpu_workspace_least() */
} cpu_plan_t;

/* Why no call can compute the problem with kernels of this configuration, whatever the number of
 * threads; NULL: calls can. Static storage. */
const char *cpu_plan_obstacle(const flash_config_t *config, const flash_params_t *params);

/* max_workers: at most n_threads, fewer for a problem too small to share. UNSUPPORTED when there is
 * an obstacle. */
flash_status_t cpu_plan_make(const flash_config_t *config, const flash_params_t *params,
                             int32_t n_threads, cpu_plan_t *plan);

/* Tasks of packing before a head's other tasks: a block of its keys each. 0: nothing is shared. */
int64_t cpu_plan_n_packs(const cpu_plan_t *plan, const cpu_cut_t *cut);

/* Packing task `index` of a head; the caller fills in where to. */
cpu_task_t cpu_plan_pack(const cpu_plan_t *plan, const cpu_cut_t *cut, int32_t batch_index,
                         int32_t head_kv, int64_t index);

/* Task `index` of a head of a sequence that is not split, the longest first; the caller fills in
 * what is packed. */
cpu_task_t cpu_plan_row_task(const cpu_plan_t *plan, const flash_params_t *params,
                             const cpu_cut_t *cut, int32_t batch_index, int32_t head_kv,
                             int64_t index);

/* Tasks of a sequence that is split: split after split all heads, as many together as a task has.
 */
int64_t cpu_plan_n_split_tasks(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index);

/* Its task `index`; the caller fills in the partials, and what is ahead. No keys beyond the last
 * one. */
cpu_task_t cpu_plan_split_task(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index, int64_t index);

/* Bytes of workspace, at any alignment, that this problem has a use for with this many workers:
 * what they gain by, and what they need. Smaller problems may have a use for more
 * (workspace.h). */
uint64_t cpu_plan_workspace(const cpu_plan_t *plan, int32_t n_workers);
uint64_t cpu_plan_least_workspace(const cpu_plan_t *plan, int32_t n_workers);

/* Workers that a workspace of this size has room for, at most max_workers; 0: it is less than
 * least_workspace. */
int32_t cpu_plan_workers(const cpu_plan_t *plan, uint64_t workspace_size);

/* Heads whose packed keys are kept at a time in a workspace that has room for so many workers. */
int64_t cpu_plan_slots(const cpu_plan_t *plan, int32_t n_workers, uint64_t workspace_size);

/* Whole heads that a worker packs and attends by turns, with so many slots. */
int64_t cpu_plan_turns(const cpu_plan_t *plan, int32_t n_workers, int64_t n_slots);

/* Heads of [batch, n_heads_kv], the first ones, each of which one worker packs and attends alone;
 * the slots are enough for those that each worker takes by turns, and for the other heads. */
int64_t cpu_plan_whole_heads(const cpu_plan_t *plan, const flash_params_t *params,
                             int32_t n_workers, int64_t n_slots);

#endif
