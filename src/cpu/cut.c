/*
 * This file cuts a sequence into CPU tasks.
 */
#include "cpu/cut.h"

#include "core/int64.h"
#include "cpu/way.h"

/* A sequence with fewer keys is never split. */
enum { SPLIT_LEAST_KEYS = 4 * SPLIT_MIN_KEYS };

/* Counts the splits of a sequence of n_keys keys, if its rows are few. */
static int64_t most_splits(int64_t n_heads, int64_t n_keys) {
    const int64_t n_short = min64(n_keys / SPLIT_MIN_KEYS, SPLIT_ENOUGH / n_heads);
    const int64_t n_worth = max64(n_short, n_keys / SPLIT_LONG_KEYS);
    return n_keys < SPLIT_LEAST_KEYS ? 1 : min64(n_worth, SPLIT_MAX_TASKS / n_heads);
}

/* Counts the fewest splits of a sequence with more than one block of rows, if it is split. */
static int64_t least_splits_of_blocks(int64_t n_heads) {
    return max64(2, divide_up(SPLIT_BLOCKS_TASKS, n_heads));
}

int32_t cpu_cut_count_splits(const cpu_family_t *family, const flash_config_t *config,
                             int32_t n_heads_kv, int64_t n_rows, int64_t n_keys) {
    const int64_t n_heads = max64(n_heads_kv, 1);
    const bool has_blocks = n_rows > config->B_r;
    const int64_t row_keys = has_blocks ? SPLIT_BLOCKS_KEYS : SPLIT_ROW_KEYS;
    const int64_t fitting = n_keys / row_keys / max64(n_rows, 1);
    const int64_t n_splits = max64(1, min64(most_splits(n_heads, n_keys), fitting));
    if (n_rows > cpu_way_split_rows(family, config))
        return 1;
    return has_blocks && n_splits < least_splits_of_blocks(n_heads) ? 1 : (int32_t)n_splits;
}

/* ---- Bounds ---- */

/* Bounds the rows of a split sequence with one block of rows; 0 if none is split. */
static int64_t split_rows_of_block(int64_t n_heads, int64_t n_rows, int64_t n_keys) {
    return most_splits(n_heads, n_keys) < 2 ? 0 : min64(n_rows, n_keys / (2 * SPLIT_ROW_KEYS));
}

/* Bounds the rows of a split sequence with several blocks of rows; 0 if none is split. */
static int64_t split_rows_of_blocks(int64_t n_heads, int64_t n_rows, int64_t n_keys) {
    const int64_t least = least_splits_of_blocks(n_heads);
    return most_splits(n_heads, n_keys) < least ? 0
                                                : min64(n_rows, n_keys / SPLIT_BLOCKS_KEYS / least);
}

/* Returns the number of keys from which on every sequence of at most n_rows rows is split, into at
 * least n_splits with row_keys keys per row; INT64_MAX if none is. */
static int64_t split_from_keys(int64_t n_heads, int64_t n_rows, int64_t n_splits,
                               int64_t row_keys) {
    const int64_t keys = n_splits * max64(row_keys * n_rows, SPLIT_LONG_KEYS);
    return SPLIT_MAX_TASKS / n_heads < n_splits ? INT64_MAX : max64(keys, SPLIT_LEAST_KEYS);
}

static int64_t most_shared_keys(const cpu_family_t *family, const flash_config_t *config,
                                int64_t n_heads, int64_t n_rows) {
    const int64_t of_block = min64(n_rows, config->B_r);
    int64_t from = 0;
    if (!cpu_way_shares(family, config, n_rows))
        return 0;
    if (n_rows > cpu_way_split_rows(family, config))
        return INT64_MAX;
    if (cpu_way_shares(family, config, of_block))
        from = split_from_keys(n_heads, of_block, 2, SPLIT_ROW_KEYS);
    if (n_rows > config->B_r)
        from = max64(from, split_from_keys(n_heads, n_rows, least_splits_of_blocks(n_heads),
                                           SPLIT_BLOCKS_KEYS));
    return from - 1;
}

static cpu_cut_bounds_t bounds_of_splits(const cpu_family_t *family, const flash_config_t *config,
                                         int64_t n_heads, int64_t n_rows, int64_t n_keys) {
    const int64_t n_splits = most_splits(n_heads, n_keys);
    const int64_t of_block = split_rows_of_block(n_heads, min64(n_rows, config->B_r), n_keys);
    const int64_t most = min64(n_rows, cpu_way_split_rows(family, config));
    const int64_t of_several = split_rows_of_blocks(n_heads, most, n_keys);
    const int64_t of_blocks = of_several > config->B_r ? of_several : 0;
    return (cpu_cut_bounds_t){
        .split_rows = max64(of_block, of_blocks),
        .partial_rows = max64(min64(n_splits * of_block, n_keys / SPLIT_ROW_KEYS),
                              min64(n_splits * of_blocks, n_keys / SPLIT_BLOCKS_KEYS)),
        .shared_keys = min64(n_keys, most_shared_keys(family, config, n_heads, n_rows))};
}

cpu_cut_bounds_t cpu_cut_bounds(const cpu_family_t *family, const flash_config_t *config,
                                int32_t n_heads_kv, int64_t n_rows, int64_t n_keys) {
    if (n_keys >= SPLIT_LEAST_KEYS)
        return bounds_of_splits(family, config, max64(n_heads_kv, 1), n_rows, n_keys);
    return (cpu_cut_bounds_t){.shared_keys = cpu_way_shares(family, config, n_rows) ? n_keys : 0};
}

/* ---- One sequence ---- */

static void split_keys(const cpu_family_t *family, const flash_config_t *config, int32_t n_heads_kv,
                       cpu_cut_t *cut) {
    const int64_t n_keys = (int64_t)cut->keys.end - cut->keys.begin;
    const int32_t n_splits = cpu_cut_count_splits(family, config, n_heads_kv, cut->n_rows, n_keys);
    if (n_splits == 1)
        return;
    cut->keys_per_split =
        (int32_t)(divide_up(divide_up(n_keys, n_splits), SPLIT_STEP) * SPLIT_STEP);
    cut->n_splits = (int32_t)divide_up(n_keys, cut->keys_per_split);
    cut->n_tasks_per_head = cut->n_splits;
}

/* Counts the tasks of rows_per_task rows: parts of whole blocks of B_r, or several blocks. */
static int64_t count_full(int32_t B_r, int32_t rows_per_task, int64_t n_rows) {
    return rows_per_task < B_r ? n_rows / B_r * (B_r / rows_per_task) : n_rows / rows_per_task;
}

int64_t cpu_cut_count_tasks(int32_t B_r, int32_t rows_per_task, int64_t n_rows) {
    const int64_t n_full = count_full(B_r, rows_per_task, n_rows);
    return n_full + divide_up(n_rows - n_full * rows_per_task, B_r);
}

cpu_cut_t cpu_cut_sequence(const cpu_family_t *family, const flash_config_t *config,
                           const flash_params_t *params, int32_t rows_per_task,
                           int32_t batch_index) {
    const int32_t B_r = config->B_r;
    cpu_cut_t cut = {.sequence = flash_sequence(params, batch_index),
                     .n_splits = 1,
                     .B_r = B_r,
                     .rows_per_task = rows_per_task};
    cut.n_rows = (int64_t)cut.sequence.len_q * params->group;
    cut.n_full = count_full(B_r, rows_per_task, cut.n_rows);
    cut.n_tasks_per_head = cpu_cut_count_tasks(B_r, rows_per_task, cut.n_rows);
    cut.keys.begin = flash_visible_keys(params, &cut.sequence, 0).begin;
    cut.keys.end = cut.sequence.len_k;
    if (cut.n_rows > 0)
        split_keys(family, config, params->n_heads_kv, &cut);
    return cut;
}

/* Later rows see more keys under a causal mask, so the last block comes first. */
static void set_row_block(cpu_task_t *task, const flash_params_t *params, const cpu_cut_t *cut,
                          int64_t index) {
    const int64_t block = cut->n_tasks_per_head - 1 - index;
    const int64_t n_before = min64(block, cut->n_full);
    const int64_t rows = block < cut->n_full ? cut->rows_per_task : cut->B_r;
    task->row_begin = n_before * cut->rows_per_task + (block - n_before) * cut->B_r;
    task->row_end = min64(task->row_begin + rows, cut->n_rows);
    const int64_t first = task->row_begin / params->group;
    const int64_t last = (task->row_end - 1) / params->group;
    task->keys.begin = flash_visible_keys(params, &cut->sequence, first).begin;
    task->keys.end = flash_visible_keys(params, &cut->sequence, last).end;
}

flash_range_t cpu_cut_split_keys(const cpu_cut_t *cut, int64_t index) {
    const int64_t begin = cut->keys.begin + index * cut->keys_per_split;
    const flash_range_t keys = {(int32_t)min64(begin, cut->keys.end),
                                (int32_t)min64(begin + cut->keys_per_split, cut->keys.end)};
    return keys;
}

cpu_task_t cpu_cut_task(const flash_params_t *params, const cpu_cut_t *cut, int32_t batch_index,
                        int32_t head_kv, int64_t index) {
    cpu_task_t task = {
        .sequence = cut->sequence, .batch_index = batch_index, .head_kv = head_kv, .n_heads = 1};
    set_row_block(&task, params, cut, index);
    return task;
}
