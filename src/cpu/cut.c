/*
 * This file cuts a sequence into CPU tasks.
 */
#include "cpu/cut.h"

#include "core/int64.h"
#include "cpu/way.h"
#include "kernels/common/sequence.h"

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

/* Returns the rows of partial results of a head, over all of its splits, that SPLIT_MAX_BYTES
 * hold; those of n_splits at least. */
static int64_t most_partial_rows(const flash_params_t *params, int64_t n_rows, int64_t n_splits) {
    const int64_t row_bytes = max64(params->d_head_v, 1) * (int64_t)sizeof(float);
    return max64(SPLIT_MAX_BYTES / row_bytes, n_splits * n_rows);
}

int32_t cpu_cut_count_splits(const cpu_family_t *family, const flash_config_t *config,
                             const flash_params_t *params, int64_t n_rows, int64_t n_keys) {
    const int64_t n_heads = max64(params->n_heads_kv, 1), rows = max64(n_rows, 1);
    const bool has_blocks = n_rows > config->B_r;
    const int64_t least = has_blocks ? least_splits_of_blocks(n_heads) : 2;
    const int64_t row_keys = has_blocks ? SPLIT_BLOCKS_KEYS : SPLIT_ROW_KEYS;
    const int64_t fitting = min64(n_keys / row_keys, most_partial_rows(params, rows, least)) / rows;
    const int64_t n_splits = min64(most_splits(n_heads, n_keys), fitting);
    return n_rows > cpu_way_split_rows(family, config) || n_splits < least ? 1 : (int32_t)n_splits;
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
                                         const flash_params_t *params, int64_t n_rows,
                                         int64_t n_keys) {
    const int64_t n_heads = max64(params->n_heads_kv, 1), n_splits = most_splits(n_heads, n_keys);
    const int64_t least = least_splits_of_blocks(n_heads);
    const int64_t of_block = split_rows_of_block(n_heads, min64(n_rows, config->B_r), n_keys);
    const int64_t most = min64(n_rows, cpu_way_split_rows(family, config));
    const int64_t of_several = split_rows_of_blocks(n_heads, most, n_keys);
    const int64_t of_blocks = of_several > config->B_r ? of_several : 0;
    return (cpu_cut_bounds_t){
        .split_rows = max64(of_block, of_blocks),
        .partial_rows = min64(max64(min64(n_splits * of_block, n_keys / SPLIT_ROW_KEYS),
                                    min64(n_splits * of_blocks, n_keys / SPLIT_BLOCKS_KEYS)),
                              most_partial_rows(params, max64(of_block, of_blocks), least)),
        .shared_keys = min64(n_keys, most_shared_keys(family, config, n_heads, n_rows))};
}

cpu_cut_bounds_t cpu_cut_bounds(const cpu_family_t *family, const flash_config_t *config,
                                const flash_params_t *params, int64_t n_rows, int64_t n_keys) {
    if (n_keys >= SPLIT_LEAST_KEYS)
        return bounds_of_splits(family, config, params, n_rows, n_keys);
    return (cpu_cut_bounds_t){.shared_keys = cpu_way_shares(family, config, n_rows) ? n_keys : 0};
}

/* ---- One sequence ---- */

flash_range_t cpu_cut_visible_keys(const flash_params_t *params, const flash_sequence_t *sequence) {
    if (sequence->len_q <= 0)
        return (flash_range_t){0, 0};
    return (flash_range_t){flash_visible_keys(params, sequence, 0).begin,
                           flash_visible_keys(params, sequence, sequence->len_q - 1).end};
}

static void split_keys(const cpu_family_t *family, const flash_config_t *config,
                       const flash_params_t *params, cpu_cut_t *cut) {
    const int64_t n_keys = (int64_t)cut->keys.end - cut->keys.begin;
    const int32_t n_splits = cpu_cut_count_splits(family, config, params, cut->n_rows, n_keys);
    if (n_splits == 1)
        return;
    cut->keys_per_split =
        (int32_t)(divide_up(divide_up(n_keys, n_splits), SPLIT_STEP) * SPLIT_STEP);
    cut->n_splits = (int32_t)divide_up(n_keys, cut->keys_per_split);
}

/* Counts the tasks of rows_per_task rows: parts of whole blocks of B_r, or several blocks. */
static int64_t count_full(int32_t B_r, int32_t rows_per_task, int64_t n_rows) {
    return rows_per_task < B_r ? n_rows / B_r * (B_r / rows_per_task) : n_rows / rows_per_task;
}

int64_t cpu_cut_count_tasks(int32_t B_r, int32_t rows_per_task, int64_t n_rows) {
    const int64_t n_full = count_full(B_r, rows_per_task, n_rows);
    return n_full + divide_up(n_rows - n_full * rows_per_task, B_r);
}

int64_t cpu_cut_most_packs(const cpu_family_t *family, const flash_config_t *config,
                           const flash_params_t *params) {
    const uint64_t most = (uint64_t)SHARED_MAX_MIB * MIB;
    return family->packs ? (int64_t)(most / family->block_size(config, params)) : 0;
}

/* Counts the blocks of keys that tasks share. They begin at multiples of B_c. */
static int64_t count_packs(const cpu_family_t *family, const flash_config_t *config,
                           const flash_params_t *params, const cpu_cut_t *cut) {
    const int64_t B_c = config->B_c;
    const int64_t n = divide_up(cut->keys.end, B_c) - cut->keys.begin / B_c;
    const bool shares = cut->n_splits == 1 && cut->keys.begin < cut->keys.end &&
                        cpu_way_shares(family, config, cut->n_rows);
    return shares && n <= cpu_cut_most_packs(family, config, params) ? n : 0;
}

static void set_tasks(cpu_cut_t *cut, int32_t rows_per_task) {
    cut->rows_per_task = rows_per_task;
    cut->n_full = count_full(cut->B_r, rows_per_task, cut->n_rows);
    cut->n_tasks_per_head = cut->n_splits > 1
                                ? cut->n_splits
                                : cpu_cut_count_tasks(cut->B_r, rows_per_task, cut->n_rows);
}

cpu_cut_t cpu_cut_sequence(const cpu_family_t *family, const flash_config_t *config,
                           const flash_params_t *params, int32_t rows_per_task,
                           int32_t batch_index) {
    cpu_cut_t cut = {
        .sequence = flash_sequence(params, batch_index), .n_splits = 1, .B_r = config->B_r};
    cut.n_rows = (int64_t)cut.sequence.len_q * params->group;
    cut.keys = cpu_cut_visible_keys(params, &cut.sequence);
    if (cut.n_rows > 0)
        split_keys(family, config, params, &cut);
    cut.n_packs = count_packs(family, config, params, &cut);
    set_tasks(&cut, cut.n_packs > 0 ? rows_per_task : config->B_r);
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
