/*
 * This file decides how workers share a problem's CPU tasks, and lays out the workspace.
 */
#include "cpu/plan.h"

#include "config/config.h"
#include "core/int64.h"
#include "core/status.h"
#include "cpu/lengths.h"
#include "kernels/common/key.h"

/* A problem may have 2^52 rows and keys over all K/V heads. That bounds the number of items, far
 * from where counting them would overflow. */
enum { MOST_ITEMS_BITS = 52 };

static int64_t count_heads(const flash_params_t *p) {
    return (int64_t)p->batch * p->n_heads_kv;
}

/* ---- Splits ---- */

/* Splits of a sequence whose tasks all have the same number of heads. */
typedef struct split_tasks {
    int64_t n_splits;
    int32_t heads_per_task;
    int64_t tasks_per_split;
} split_tasks_t;

static split_tasks_t split_tasks(const flash_params_t *params, int64_t n_splits,
                                 int32_t heads_per_task) {
    return (split_tasks_t){n_splits, heads_per_task, divide_up(params->n_heads_kv, heads_per_task)};
}

/* Divides the splits of a sequence into `first` and `last`. The last splits of a call have smaller
 * tasks, so that threads of unequal speed end at about the same time. */
static void share_splits(const cpu_plan_t *plan, const flash_params_t *params, const cpu_cut_t *cut,
                         int32_t batch_index, split_tasks_t *first, split_tasks_t *last) {
    const bool ends = batch_index + 1 == params->batch;
    const int32_t fewer = plan->heads_together / LAST_PARTS;
    *first = split_tasks(params, cut->n_splits, plan->heads_together);
    *last = split_tasks(params, 0, fewer > 1 ? fewer : 1);
    if (ends)
        last->n_splits =
            min64(cut->n_splits, divide_up(plan->max_workers / 2, first->tasks_per_split));
    first->n_splits -= last->n_splits;
}

int64_t cpu_plan_n_split_tasks(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index) {
    split_tasks_t first, last;
    share_splits(plan, params, cut, batch_index, &first, &last);
    return first.n_splits * first.tasks_per_split + last.n_splits * last.tasks_per_split;
}

/* Heads vary fastest, because keys of neighbouring heads may share memory pages. */
cpu_task_t cpu_plan_split_task(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index, int64_t index) {
    split_tasks_t first, last;
    share_splits(plan, params, cut, batch_index, &first, &last);
    const int64_t n_first = first.n_splits * first.tasks_per_split;
    const bool is_last = index >= n_first;
    const split_tasks_t tasks = is_last ? last : first;
    const int64_t at = is_last ? index - n_first : index;
    const int64_t split = at / tasks.tasks_per_split + (is_last ? first.n_splits : 0);
    const int32_t head_kv = (int32_t)(at % tasks.tasks_per_split) * tasks.heads_per_task;
    const flash_range_t keys = cpu_cut_split_keys(cut, split);
    return (cpu_task_t){.way = cpu_way(plan->family, plan->config, params, CPU_KEYS_SPLIT,
                                       cut->n_rows, (int64_t)keys.end - keys.begin),
                        .sequence = cut->sequence,
                        .batch_index = batch_index,
                        .head_kv = head_kv,
                        .n_heads =
                            (int32_t)min64(tasks.heads_per_task, params->n_heads_kv - head_kv),
                        .row_end = cut->n_rows,
                        .keys = keys,
                        .partial_rows = plan->partial_rows};
}

/* ---- Packing ---- */

/* Returns the number of the first block of keys that a head's tasks share. */
static int32_t first_block(const cpu_plan_t *plan, const cpu_cut_t *cut) {
    return cut->keys.begin / plan->config->B_c;
}

cpu_task_t cpu_plan_pack(const cpu_plan_t *plan, const cpu_cut_t *cut, int32_t batch_index,
                         int32_t head_kv, int64_t index) {
    const int64_t B_c = plan->config->B_c, begin = (first_block(plan, cut) + index) * B_c;
    const flash_range_t keys = {(int32_t)begin, (int32_t)min64(begin + B_c, cut->keys.end)};
    return (cpu_task_t){.way = CPU_WAY_PACK,
                        .sequence = cut->sequence,
                        .batch_index = batch_index,
                        .head_kv = head_kv,
                        .n_heads = 1,
                        .keys = keys,
                        .packed_block = first_block(plan, cut)};
}

cpu_task_t cpu_plan_row_task(const cpu_plan_t *plan, const flash_params_t *params,
                             const cpu_cut_t *cut, int32_t batch_index, int32_t head_kv,
                             int64_t index) {
    cpu_task_t task = cpu_cut_task(params, cut, batch_index, head_kv, index);
    task.packed_block = first_block(plan, cut);
    task.way = cpu_way(plan->family, plan->config, params,
                       cut->n_packs > 0 ? CPU_KEYS_PACKED : CPU_KEYS_ALONE,
                       task.row_end - task.row_begin, (int64_t)task.keys.end - task.keys.begin);
    return task;
}

/* Says whether sequences may have any number of queries up to seqlen_q. */
static bool queries_vary(const flash_params_t *p) {
    return p->cu_seqlens_q != NULL || p->seqused_q != NULL;
}

/* Returns the most keys that the rows of a sequence see: of each one where lengths are equal. */
static int64_t most_visible_keys(const flash_params_t *p) {
    if (!problem_lengths_are_equal(p))
        return p->seqlen_k;
    const flash_sequence_t sequence = flash_sequence(p, 0);
    const flash_range_t keys = cpu_cut_visible_keys(p, &sequence);
    return (int64_t)keys.end - keys.begin;
}

/* Says whether no sequence has tasks that share packed keys. */
static bool none_shares(const cpu_plan_t *plan, const flash_params_t *p) {
    if (plan->packed_size == 0)
        return true;
    return problem_lengths_are_equal(p) &&
           cpu_cut_sequence(plan->family, plan->config, p, plan->config->B_r, 0).n_packs == 0;
}

/* Counts the heads whose packed keys are kept at a time: all, or what PACKED_MAX_BYTES hold. */
static int64_t count_slots(const cpu_plan_t *plan, const flash_params_t *p) {
    if (none_shares(plan, p))
        return 0;
    const int64_t fitting = (int64_t)(PACKED_MAX_BYTES / plan->packed_size);
    return min64(count_heads(p), fitting > 1 ? fitting : 1);
}

static bool lie_side_by_side(const flash_strides_t *stride) {
    return stride->head > 0 && stride->head < stride->seq;
}

/* Returns the whole heads that a worker may have at once. */
static int64_t most_turns(const cpu_plan_t *plan, const flash_params_t *p) {
    const bool in_order = lie_side_by_side(&p->k_stride) && lie_side_by_side(&p->v_stride);
    if (plan->max_slots == 0 || !in_order || !problem_lengths_are_equal(p))
        return 1;
    return max64(1, (int64_t)(TURNS_MAX_BYTES / plan->packed_size));
}

/* Counts slots: for each worker the heads that it has at once, and another set to pack meanwhile.
 * More would only reach memory that is no longer in the caches. */
static int64_t slots_of(const cpu_plan_t *plan, int32_t n_workers, int64_t turns) {
    return min64(plan->max_slots, 2 * n_workers * turns - 1);
}

/* Returns the whole heads that a worker has at once, with n_slots slots. */
static int64_t count_turns(const cpu_plan_t *plan, int32_t n_workers, int64_t n_slots) {
    const int64_t fitting = (n_slots + 1) / (2 * (int64_t)n_workers);
    const int64_t balanced = plan->max_slots / (WHOLE_MIN_ROUNDS * (int64_t)n_workers);
    return max64(1, min64(plan->max_turns, min64(fitting, balanced)));
}

/* Says whether it pays that one worker packs and attends a whole head. It saves moving packed keys
 * to another core's cache, which counts where few rows share them. Its price is that workers of
 * unequal speed end together only after several rounds of heads. */
static bool pays_alone(const flash_params_t *params, int32_t n_workers) {
    const int64_t n_heads = count_heads(params);
    const int64_t n_rows = (int64_t)params->seqlen_q * params->group;
    return n_rows <= params->seqlen_k || n_heads >= WHOLE_MIN_ROUNDS * (int64_t)n_workers;
}

/* All workers get the same number of heads, if these have the same work and few packed keys. */
static int64_t count_whole_heads(const cpu_plan_t *plan, const flash_params_t *params) {
    const int64_t n_heads = count_heads(params);
    const int64_t n_taken = plan->n_workers * plan->turns;
    const int64_t n_others = n_heads % n_taken;
    const bool has_slots = n_taken + n_others <= plan->n_slots;
    return problem_lengths_are_equal(params) && pays_alone(params, plan->n_workers) && has_slots &&
                   plan->packed_size <= WHOLE_HEAD_MAX_BYTES
               ? n_heads - n_others
               : 0;
}

/* Shares the heads among n_workers, in `room` slots or as many as they gain by. */
static void share_heads(cpu_plan_t *plan, const flash_params_t *p, int32_t n_workers,
                        int64_t room) {
    const int64_t most = slots_of(plan, n_workers, count_turns(plan, n_workers, plan->max_slots));
    plan->n_workers = n_workers;
    plan->n_slots = min64(most, room);
    plan->turns = count_turns(plan, n_workers, plan->n_slots);
    plan->n_whole = count_whole_heads(plan, p);
}

/* ---- The workspace ---- */

static void lay_out(cpu_plan_t *plan, const flash_params_t *p) {
    plan->lengths_at = cpu_workspace_items(p);
    plan->n_left_at = plan->lengths_at + cpu_lengths_size(p);
    plan->o_partial_at = plan->n_left_at + cpu_workspace_left(p);
    plan->lse_partial_at =
        plan->o_partial_at + cpu_workspace_partials(p, plan->partial_rows, p->d_head_v);
    plan->scratch_at = plan->lse_partial_at + cpu_workspace_partials(p, plan->partial_rows, 1);
}

/* Counts the threads worth waking: one per task, or one in all when there is little to do. */
static int32_t count_workers(const flash_params_t *p, const cpu_plan_t *plan, int32_t n_threads) {
    const int64_t n_rows = (int64_t)p->seqlen_q * p->group;
    const int64_t n_blocks = cpu_cut_count_tasks(plan->config->B_r, plan->rows_per_task, n_rows);
    const int64_t n_tasks = count_heads(p) * max64(n_blocks, plan->max_splits);
    return cpu_way_is_small(p) ? 1 : (int32_t)max64(1, min64(n_tasks, n_threads));
}

/* Returns the rows of a task where a head's tasks share packed keys: several blocks of B_r if these
 * keys exceed a level 2 cache and threads have many tasks, a part of one if tasks are too few. */
static int32_t count_rows_per_task(const flash_params_t *p, const cpu_plan_t *plan,
                                   int32_t n_threads) {
    const int32_t B_r = plan->config->B_r;
    const int64_t n_rows = (int64_t)p->seqlen_q * p->group, n_heads = count_heads(p);
    const int64_t n_many = LARGE_TASKS_PER_THREAD * (int64_t)n_threads;
    const bool is_large = plan->packed_size > TURNS_MAX_BYTES;
    int32_t rows = is_large ? cpu_way_task_rows(plan->family, plan->config) : B_r;
    if (none_shares(plan, p))
        return B_r;
    while (rows > B_r && n_heads * cpu_cut_count_tasks(B_r, rows, n_rows) < n_many)
        rows /= 2;
    while (cpu_way_is_divisible(plan->family, rows) &&
           n_heads * cpu_cut_count_tasks(B_r, rows, n_rows) < n_threads)
        rows /= 2;
    return rows;
}

/* Counts the tasks of split sequences that have `heads` heads each. */
static int64_t count_split_tasks(const flash_params_t *p, const cpu_plan_t *plan, int64_t heads) {
    return (int64_t)p->batch * plan->max_splits * divide_up(p->n_heads_kv, heads);
}

/* Returns the K/V heads of a task over split keys that goes this way: B_r rows in all. */
static int64_t most_heads(const cpu_plan_t *plan, cpu_way_t way) {
    const int64_t rows = plan->max_rows, B_r = plan->config->B_r;
    return cpu_way_is_in_place(way) && rows > 0 && rows < B_r ? B_r / rows : 1;
}

/* Where the heads of a key lie side by side, a task reads as many of them together as leave enough
 * tasks. That is near the order of memory. */
static int32_t count_heads_together(const flash_params_t *p, const cpu_plan_t *plan,
                                    int32_t n_threads) {
    const cpu_way_t way =
        cpu_way(plan->family, plan->config, p, CPU_KEYS_SPLIT, plan->max_rows, p->seqlen_k);
    const int64_t bytes = cpu_way_has_steps(way) ? HEADS_STEPS_BYTES : HEADS_BLOCKS_BYTES;
    const int64_t k_bytes = key_bytes(plan->config->dtype, p->d_head);
    const int64_t fitting = bytes / max64(k_bytes, key_bytes(p->v_dtype, p->d_head_v));
    const int64_t most = min64(most_heads(plan, way), p->n_heads_kv);
    const int64_t n_tasks = HEADS_TASKS_PER_THREAD * (int64_t)n_threads;
    int64_t heads = max64(1, min64(most, fitting));
    if (!lie_side_by_side(&p->k_stride) || !lie_side_by_side(&p->v_stride))
        return 1;
    while (heads > 1 && count_split_tasks(p, plan, heads) < n_tasks)
        heads /= 2;
    return (int32_t)heads;
}

/* Says whether overflow is impossible: 40 bits of items of fewer than 16 bits of elements. */
static bool is_ordinary(uint64_t n_items, const flash_params_t *p) {
    return n_items >> 40 == 0 && p->d_head >> 16 == 0 && p->d_head_v >> 16 == 0;
}

const char *cpu_plan_obstacle(const flash_config_t *config, const flash_params_t *p) {
    const cpu_family_t *family = cpu_family(config->arch);
    const uint64_t n_rows = (uint64_t)p->seqlen_q * (uint64_t)p->group;
    const uint64_t n_heads = (uint64_t)p->batch * (uint64_t)p->n_heads_kv;
    const uint64_t n_keys = (uint64_t)p->seqlen_k;
    const uint64_t n_items = saturating_multiply(n_heads, n_rows + n_keys + 1);
    if (family == NULL)
        return "it is no family of CPU kernels";
    if (is_ordinary(n_items, p))
        return NULL;
    if (n_items >> MOST_ITEMS_BITS != 0)
        return "the problem has more rows and keys than 52 bits count";
    if (n_heads > 0 && n_rows > 0 && cpu_workspace_least(family, config, p) > INT64_MAX)
        return "the workspace has more bytes than 63 bits count";
    return NULL;
}

/* Returns the rows of partial results per head. If all sequences have the same number of rows, the
 * keys bound the rows of all splits together. */
static int64_t count_partial_rows(const cpu_plan_t *plan, const flash_params_t *p,
                                  const cpu_cut_bounds_t *bounds) {
    if (plan->max_splits == 1)
        return 0;
    if (queries_vary(p))
        return bounds->partial_rows;
    return min64(plan->max_splits * plan->max_rows, p->seqlen_k / SPLIT_BLOCKS_KEYS);
}

/* Sets the most rows of a task that does not split keys. */
static void set_rows_per_task(cpu_plan_t *plan, const flash_params_t *p, int32_t rows) {
    plan->rows_per_task = rows;
    plan->scratch_size = plan->family->scratch_size(plan->config, p, max64(rows, plan->split_rows));
}

flash_status_t cpu_plan_make(const flash_config_t *config, const flash_params_t *params,
                             int32_t n_threads, cpu_plan_t *plan) {
    const int64_t n_rows = (int64_t)params->seqlen_q * params->group;
    const int64_t fewest_rows = queries_vary(params) ? 1 : n_rows;
    const cpu_family_t *family = cpu_family(config->arch);
    const char *obstacle = cpu_plan_obstacle(config, params);
    FLASH_REQUIRE(obstacle == NULL, FLASH_ERROR_UNSUPPORTED,
                  "%s cannot run batch %d, %d K/V heads, %d queries, %d keys, d_head %d, d_head_v "
                  "%d: %s",
                  config_arch_name(config->arch), params->batch, params->n_heads_kv,
                  params->seqlen_q, params->seqlen_k, params->d_head, params->d_head_v, obstacle);
    *plan = (cpu_plan_t){.config = config, .family = family};
    const cpu_cut_bounds_t bounds =
        cpu_cut_bounds(family, config, params, n_rows, params->seqlen_k);
    plan->max_rows = min64(n_rows, cpu_way_split_rows(family, config));
    plan->max_splits =
        cpu_cut_count_splits(family, config, params, fewest_rows, most_visible_keys(params));
    plan->partial_rows = count_partial_rows(plan, params, &bounds);
    plan->heads_together = count_heads_together(params, plan, n_threads);
    plan->packed_size = cpu_workspace_packed(family, config, params, bounds.shared_keys);
    plan->split_rows = plan->max_splits > 1 ? bounds.split_rows : 0;
    set_rows_per_task(plan, params, count_rows_per_task(params, plan, n_threads));
    plan->max_slots = count_slots(plan, params);
    plan->max_turns = most_turns(plan, params);
    plan->max_workers = count_workers(params, plan, n_threads);
    plan->least_workspace = cpu_workspace_least(family, config, params);
    lay_out(plan, params);
    share_heads(plan, params, plan->max_workers, INT64_MAX);
    return FLASH_SUCCESS;
}

/* ---- A plan in a workspace ---- */

static uint64_t bytes_of(const cpu_plan_t *plan, int32_t n_workers, int64_t n_slots) {
    return CPU_WORKSPACE_ALIGNMENT - 1 + plan->scratch_at +
           (uint64_t)n_workers * plan->scratch_size + (uint64_t)n_slots * plan->packed_size;
}

uint64_t cpu_plan_workspace(const cpu_plan_t *plan) {
    return max_u64(plan->least_workspace, bytes_of(plan, plan->n_workers, plan->n_slots));
}

bool cpu_plan_fit(cpu_plan_t *plan, const flash_params_t *p, uint64_t workspace_size) {
    const int32_t B_r = plan->config->B_r;
    const int64_t least_slots = min64(plan->max_slots, 1);
    int32_t n = plan->max_workers;
    if (workspace_size < plan->least_workspace)
        return false;
    while (plan->rows_per_task > B_r && bytes_of(plan, n, least_slots) > workspace_size)
        set_rows_per_task(plan, p, plan->rows_per_task / 2);
    while (n > 1 && bytes_of(plan, n, least_slots) > workspace_size)
        n--;
    const uint64_t left = workspace_size - bytes_of(plan, n, 0);
    share_heads(plan, p, n, least_slots > 0 ? (int64_t)(left / plan->packed_size) : 0);
    return true;
}
