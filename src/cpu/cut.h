/*
 * A sequence is cut into tasks for the CPU. Splits of keys and whether tasks share packed keys, and
 * with them the bits of the result, depend only on the sequence's lengths and masks, not on
 * threads or on the rest of the batch. How many rows a task has does not change the result, since
 * rows are cut differently only where tasks share packed keys.
 */
#ifndef FLASH_CPU_CUT_H
#define FLASH_CPU_CUT_H

#include "kernels/common/sequence.h"
#include "kernels/cpu/cpu_kernel.h"

/* The tasks of one sequence: per K/V head either blocks of rows, each with all its keys, or, if
 * rows are few and keys many, all rows with each of n_splits ranges of keys. */
typedef struct cpu_cut {
    flash_sequence_t sequence;
    int64_t n_rows; /* packed rows per K/V head */
    int64_t n_tasks_per_head;
    int64_t n_full; /* tasks of rows_per_task rows; the rest has B_r rows per task */
    int32_t B_r;
    int32_t rows_per_task;
    int64_t n_packs;        /* blocks of keys that are packed for all tasks of a head; 0: none */
    int32_t n_splits;       /* 1: not split */
    flash_range_t keys;     /* visible to some row */
    int32_t keys_per_split; /* if n_splits > 1 */
} cpu_cut_t;

/* Returns the keys that some query of the sequence sees. */
flash_range_t cpu_cut_visible_keys(const flash_params_t *params, const flash_sequence_t *sequence);

/* Counts the tasks of n_rows rows that are not split; rows_per_task divides B_r, or B_r it. */
int64_t cpu_cut_count_tasks(int32_t B_r, int32_t rows_per_task, int64_t n_rows);

cpu_cut_t cpu_cut_sequence(const cpu_family_t *family, const flash_config_t *config,
                           const flash_params_t *params, int32_t rows_per_task,
                           int32_t batch_index);

/* Makes task `index` of a sequence that is not split, the longest first, but sets no way. */
cpu_task_t cpu_cut_task(const flash_params_t *params, const cpu_cut_t *cut, int32_t batch_index,
                        int32_t head_kv, int64_t index);

/* Returns the keys of split `index`; none beyond the last split. */
flash_range_t cpu_cut_split_keys(const cpu_cut_t *cut, int64_t index);

/* Counts the splits of a sequence with n_rows packed rows per K/V head, which see n_keys keys; 1 if
 * it is not split. Neither this number nor the number of rows that are split falls as keys grow, so
 * that a workspace for the longest sequence suffices for all. */
int32_t cpu_cut_count_splits(const cpu_family_t *family, const flash_config_t *config,
                             const flash_params_t *params, int64_t n_rows, int64_t n_keys);

/* Returns the most blocks of keys that are packed for all tasks of a head of any sequence. */
int64_t cpu_cut_most_packs(const cpu_family_t *family, const flash_config_t *config,
                           const flash_params_t *params);

/* Upper bounds over all sequences of at most n_rows packed rows per K/V head and n_keys keys. */
typedef struct cpu_cut_bounds {
    int64_t split_rows;   /* rows of a split sequence; 0: none is split */
    int64_t partial_rows; /* rows times splits of a split sequence; 0: none is split */
    int64_t shared_keys;  /* packed keys that the tasks of a head share; 0: none do */
} cpu_cut_bounds_t;

cpu_cut_bounds_t cpu_cut_bounds(const cpu_family_t *family, const flash_config_t *config,
                                const flash_params_t *params, int64_t n_rows, int64_t n_keys);

#endif
