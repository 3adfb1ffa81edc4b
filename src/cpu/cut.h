/*
 * How a sequence is cut into tasks for the CPU. Splits of keys depend on the sequence's lengths
 * alone, never on threads or neighbours: so do the bits of its result, which how many of its rows a
 * task has does not change.
 */
#ifndef FLASH_CPU_CUT_H
#define FLASH_CPU_CUT_H

#include "kernels/common/sequence.h"
#include "kernels/cpu/cpu_kernel.h"

/* The tasks of one sequence: for each K/V head either blocks of rows over all their keys, or,
 * where rows are few and keys many, all rows over n_splits ranges of keys. */
typedef struct cpu_cut {
    flash_sequence_t sequence;
    int64_t n_rows; /* packed rows a K/V head */
    int64_t n_tasks_per_head;
    int64_t n_alike; /* tasks of rows_per_task; the others have B_r rows, and the last one fewer */
    int32_t B_r;
    int32_t rows_per_task;
    int32_t n_splits;       /* 1: not split */
    flash_range_t keys;     /* that some row sees */
    int32_t keys_per_split; /* n_splits > 1 */
} cpu_cut_t;

/* Counts the tasks of a sequence of n_rows rows that is not split, where rows_per_task divides B_r
 * or is a multiple of it. */
int64_t cpu_cut_count_tasks(int32_t B_r, int32_t rows_per_task, int64_t n_rows);

cpu_cut_t cpu_cut_sequence(const cpu_family_t *family, const flash_config_t *config,
                           const flash_params_t *params, int32_t rows_per_task,
                           int32_t batch_index);

/* Makes task `index` of n_tasks_per_head of a sequence that is not split, the longest first, its
 * way not decided. */
cpu_task_t cpu_cut_task(const flash_params_t *params, const cpu_cut_t *cut, int32_t batch_index,
                        int32_t head_kv, int64_t index);

/* Returns the keys of a split, 0 <= index < n_splits; none beyond the last one. */
flash_range_t cpu_cut_split_keys(const cpu_cut_t *cut, int64_t index);

/* Counts the splits of a sequence with so many packed rows a K/V head, and keys that they see. 1:
 * none. More keys never have fewer, nor have fewer rows that are split: the workspace is for those
 * of the longest sequence. */
int32_t cpu_cut_count_splits(const cpu_family_t *family, const flash_config_t *config,
                             int32_t n_heads_kv, int64_t n_rows, int64_t n_keys);

/* These are the most of any sequence that has no more packed rows per K/V head and no more keys. No
 * bound is less where there are more rows, or more keys. */
typedef struct cpu_cut_bounds {
    int64_t split_rows;   /* rows, where the keys are split; 0: they never are */
    int64_t partial_rows; /* rows times splits, likewise */
    int64_t shared_keys;  /* keys, where they are not split and tasks share packed ones; 0: never */
} cpu_cut_bounds_t;

cpu_cut_bounds_t cpu_cut_bounds(const cpu_family_t *family, const flash_config_t *config,
                                int32_t n_heads_kv, int64_t n_rows, int64_t n_keys);

#endif
