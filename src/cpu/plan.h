/*
 * A plan says how workers share a problem's tasks on the CPU, and how the workspace is divided.
 */
#ifndef FLASH_CPU_PLAN_H
#define FLASH_CPU_PLAN_H

#include "cpu/cut.h"
#include "cpu/way.h"
#include "cpu/workspace.h"
#include "flashattn.h"

/*
 * The workspace is divided by shapes and by what there is room for:
 *
 *     0            lengths_at n_left_at o_partial_at lse_partial_at scratch_at
 *     | first_item | lengths | n_left | o_partial | lse_partial | scratch ... | packed ... | rest |
 *                                                                 n_workers     n_slots
 *
 *     first_item   int64 [batch + 1], items of work before each sequence
 *     lengths      int32, copies of the call's lengths, page_indptr and page_rows (lengths.h)
 *     n_left       int64 [batch, n_heads_kv], items of a head that are still to be done
 *     o_partial    fp32  [batch, n_heads_kv, partial_rows, d_head_v]
 *     lse_partial  fp32  [batch, n_heads_kv, partial_rows]
 *     scratch      scratch_size bytes per worker
 *     packed       packed_size bytes per slot, K and V of one head at a time
 *
 * Every part begins at a multiple of 64 bytes. A call with room to spare has a rest.
 */
typedef struct cpu_plan {
    const flash_config_t *config;
    const cpu_family_t *family;
    int64_t max_slots;      /* 0: no sequence's tasks share packed keys */
    int64_t max_turns;      /* whole heads that a worker has at once, at most */
    uint64_t packed_size;   /* bytes per head */
    int32_t rows_per_task;  /* B_r, a part of it, or several */
    int32_t max_splits;     /* 1: no sequence can be split */
    int32_t heads_together; /* K/V heads of a task that splits keys, at most */
    int64_t max_rows;       /* packed rows of a sequence that may be split, at most */
    int64_t split_rows;     /* packed rows of a task that splits the keys, at most */
    int64_t partial_rows;   /* of partial results, per head */
    int32_t max_workers;
    uint64_t lengths_at; /* bytes from the aligned start of the workspace */
    uint64_t n_left_at;
    uint64_t o_partial_at;
    uint64_t lse_partial_at;
    uint64_t scratch_at;
    uint64_t scratch_size;    /* bytes per worker */
    uint64_t least_workspace; /* bytes: cpu_workspace_least() */
    /* These are what the workspace has room for: see cpu_plan_fit(). */
    int32_t n_workers;
    int64_t n_slots; /* heads whose packed keys are kept at a time */
    int64_t turns;   /* whole heads that a worker has at once */
    int64_t n_whole; /* whole heads: the first ones of [batch, n_heads_kv], each of which one worker
                        packs and attends alone; the slots suffice for those that workers have at
                        once, and for the other heads */
} cpu_plan_t;

/* Returns why no call can compute the problem with kernels of this configuration, whatever the
 * number of threads (static storage); NULL if calls can. */
const char *cpu_plan_obstacle(const flash_config_t *config, const flash_params_t *params);

/* Makes the plan for a workspace that has room for everything. max_workers is at most n_threads,
 * and less for a problem too small to share. Returns UNSUPPORTED when there is an obstacle. */
flash_status_t cpu_plan_make(const flash_config_t *config, const flash_params_t *params,
                             int32_t n_threads, cpu_plan_t *plan);

/* Returns the bytes of workspace, at any alignment, that the plan wants: least_workspace, or what
 * it uses if that is more. */
uint64_t cpu_plan_workspace(const cpu_plan_t *plan);

/* Makes the plan fit a workspace of that many bytes, which may have been asked for by a larger
 * problem: tasks have fewer rows, then packed keys of fewer heads are kept at a time, and in the
 * end there are fewer workers. Returns false if the workspace has less than least_workspace bytes.
 */
bool cpu_plan_fit(cpu_plan_t *plan, const flash_params_t *params, uint64_t workspace_size);

/* Makes packing task `index` of the n_packs of a head; the caller sets `packed`. */
cpu_task_t cpu_plan_pack(const cpu_plan_t *plan, const cpu_cut_t *cut, int32_t batch_index,
                         int32_t head_kv, int64_t index);

/* Makes task `index` of a head that is not split, the longest first; the caller sets `packed`. */
cpu_task_t cpu_plan_row_task(const cpu_plan_t *plan, const flash_params_t *params,
                             const cpu_cut_t *cut, int32_t batch_index, int32_t head_kv,
                             int64_t index);

/* Counts the tasks of a sequence that is split: per split one for every heads_together heads. */
int64_t cpu_plan_n_split_tasks(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index);

/* Makes task `index` of a sequence that is split; the caller sets the partial results and what to
 * prefetch. The task has no keys when index is beyond the last one. */
cpu_task_t cpu_plan_split_task(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index, int64_t index);

#endif
