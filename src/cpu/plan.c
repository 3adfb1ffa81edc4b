/*
 * How workers share a problem's CPU tasks, and the layout of the workspace.
 */
#include "cpu/plan.h"

#include "core/int64.h"
#include "core/status.h"
#include "kernels/common/dtype.h"

enum {
    ALIGNMENT = 64,         /* of everything in the workspace */
    TOGETHER_MIN_TASKS = 2, /* for each thread; else a task has fewer heads */
    LAST_PARTS = 4,         /* tasks in place of one, for every second thread, at a call's end */
    WHOLE_MIN_ROUNDS = 4,   /* of whole heads a worker, so that all end at about the same time */
    LARGE_MIN_TASKS = 32    /* of several blocks of rows for each thread, likewise */
};

/* Bytes of a key of the heads of a task. Blocks of all of them are asked for, and stay in a level 2
 * cache; steps are small, but longer runs of memory gain no more. */
enum { TOGETHER_BLOCKS_BYTES = 4096, TOGETHER_STEPS_BYTES = 8192 };

/* Bytes of packed keys, unless a single head needs more: a process should not double its memory. */
static const uint64_t PACKED_MAX = (uint64_t)64 << 20;

/* Bytes of packed keys of a head that a level 2 cache keeps beside a task. Measured on Emerald
 * Rapids (2 MB): with two threads whole heads of 0.5 MB are 1.1 to 1.4 times as fast, those of 1
 * and 2 MB 0.7 to 1.0 times, since otherwise several threads read the same keys. */
static const uint64_t WHOLE_MAX = (uint64_t)768 << 10;

/* The same of heads that a worker takes by turns, where the heads of a token share memory pages: a
 * page is found once for all of them. */
static const uint64_t TURNS_MAX = (uint64_t)1152 << 10;

/* Multiplications below which a problem is not shared: about what waking a thread costs. */
static const double SHARE_MIN_MULTIPLICATIONS = 1e6;

/* ---- Splits ---- */

/* Splits of a sequence whose tasks have so many heads each. */
typedef struct alike {
    int64_t n_splits;
    int32_t heads;
    int64_t n_groups; /* tasks of a split */
} alike_t;

static alike_t alike(const flash_params_t *params, int64_t n_splits, int32_t heads) {
    return (alike_t){n_splits, heads, divide_up(params->n_heads_kv, heads)};
}

/* The last splits of a call have smaller tasks, so that its threads, which are not equally fast,
 * end at about the same time. */
static void share_splits(const cpu_plan_t *plan, const flash_params_t *params, const cpu_cut_t *cut,
                         int32_t batch_index, alike_t *first, alike_t *last) {
    const bool ends = batch_index + 1 == params->batch;
    const int32_t fewer = plan->heads_together / LAST_PARTS;
    *first = alike(params, cut->n_splits, plan->heads_together);
    *last = alike(params, 0, fewer > 1 ? fewer : 1);
    if (ends)
        last->n_splits = min64(cut->n_splits, divide_up(plan->max_workers / 2, first->n_groups));
    first->n_splits -= last->n_splits;
}

int64_t cpu_plan_n_split_tasks(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index) {
    alike_t first, last;
    share_splits(plan, params, cut, batch_index, &first, &last);
    return first.n_splits * first.n_groups + last.n_splits * last.n_groups;
}

/* Heads are inside, because their keys may share memory pages. */
cpu_task_t cpu_plan_split_task(const cpu_plan_t *plan, const flash_params_t *params,
                               const cpu_cut_t *cut, int32_t batch_index, int64_t index) {
    alike_t first, last;
    share_splits(plan, params, cut, batch_index, &first, &last);
    const int64_t n_first = first.n_splits * first.n_groups;
    const bool is_last = index >= n_first;
    const alike_t own = is_last ? last : first;
    const int64_t at = is_last ? index - n_first : index;
    const int64_t split = at / own.n_groups + (is_last ? first.n_splits : 0);
    const int32_t head_kv = (int32_t)(at % own.n_groups) * own.heads;
    const cpu_task_t task = {.sequence = cut->sequence,
                             .batch_index = batch_index,
                             .head_kv = head_kv,
                             .n_heads = (int32_t)min64(own.heads, params->n_heads_kv - head_kv),
                             .row_end = cut->n_rows,
                             .keys = cpu_cut_split_keys(cut, split),
                             .partial_rows = plan->partial_rows};
    return task;
}

/* ---- Packing ---- */

int64_t cpu_plan_n_packs(const cpu_plan_t *plan, const cpu_cut_t *cut) {
    const int64_t B_c = plan->config->B_c;
    if (plan->max_slots == 0 || cut->n_splits > 1 || cut->keys.begin >= cut->keys.end ||
        !cpu_shares_packed(plan->config, cut->n_rows))
        return 0;
    return divide_up(cut->keys.end, B_c) - cut->keys.begin / B_c;
}

cpu_task_t cpu_plan_pack(const cpu_plan_t *plan, const cpu_cut_t *cut, int32_t batch_index,
                         int32_t head_kv, int64_t index) {
    const int64_t B_c = plan->config->B_c, begin = (cut->keys.begin / B_c + index) * B_c;
    const flash_range_t keys = {(int32_t)begin, (int32_t)min64(begin + B_c, cut->keys.end)};
    const cpu_task_t task = {.sequence = cut->sequence,
                             .batch_index = batch_index,
                             .head_kv = head_kv,
                             .n_heads = 1,
                             .keys = keys,
                             .pack = true};
    return task;
}

static bool heads_are_alike(const flash_params_t *p) {
    return p->cu_seqlens_q == NULL && p->cu_seqlens_k == NULL && p->seqused_k == NULL;
}

static bool all_are_split(const cpu_plan_t *plan, const flash_params_t *p) {
    return plan->max_splits > 1 && heads_are_alike(p);
}

/* Heads whose packed keys are kept at a time at most: all, or what PACKED_MAX holds. */
static int64_t count_slots(const cpu_plan_t *plan, const flash_params_t *p) {
    const int64_t n_rows = (int64_t)p->seqlen_q * p->group;
    if (p->seqlen_k == 0 || all_are_split(plan, p) || !cpu_shares_packed(plan->config, n_rows))
        return 0;
    const int64_t fitting = (int64_t)(PACKED_MAX / plan->packed_size);
    return min64((int64_t)p->batch * p->n_heads_kv, fitting > 1 ? fitting : 1);
}

static bool lie_side_by_side(const flash_strides_t *stride) {
    return stride->head > 0 && stride->head < stride->seq;
}

static int64_t count_turns(const cpu_plan_t *plan, const flash_params_t *p) {
    const bool in_order = lie_side_by_side(&p->k_stride) && lie_side_by_side(&p->v_stride);
    if (plan->max_slots == 0 || !in_order || !heads_are_alike(p))
        return 1;
    return max64(1, (int64_t)(TURNS_MAX / plan->packed_size));
}

/* For each worker the heads that it takes by turns, and the others or the next ones to pack
 * meanwhile. No more: memory that was just used is still in the caches. */
static int64_t slots_of(const cpu_plan_t *plan, int32_t n_workers, int64_t turns) {
    return min64(plan->max_slots, 2 * n_workers * turns - 1);
}

int64_t cpu_plan_turns(const cpu_plan_t *plan, int32_t n_workers, int64_t n_slots) {
    const int64_t fitting = (n_slots + 1) / (2 * (int64_t)n_workers);
    const int64_t balanced = plan->max_slots / (WHOLE_MIN_ROUNDS * (int64_t)n_workers);
    return max64(1, min64(plan->max_turns, min64(fitting, balanced)));
}

/* Whether it pays that a worker is alone with a head, although workers that are not equally fast do
 * not end together unless they have some rounds of heads: what it saves, the way of packed keys to
 * another one's cache, counts where few rows share them. */
static bool pays_alone(const flash_params_t *params, int32_t n_workers) {
    const int64_t n_heads = (int64_t)params->batch * params->n_heads_kv;
    const int64_t n_rows = (int64_t)params->seqlen_q * params->group;
    return n_rows <= params->seqlen_k || n_heads >= WHOLE_MIN_ROUNDS * (int64_t)n_workers;
}

/* As many for each worker, where all heads are as much work and their packed keys are few. */
int64_t cpu_plan_whole_heads(const cpu_plan_t *plan, const flash_params_t *params,
                             int32_t n_workers, int64_t n_slots) {
    const int64_t n_heads = (int64_t)params->batch * params->n_heads_kv;
    const int64_t n_taken = n_workers * cpu_plan_turns(plan, n_workers, n_slots);
    const int64_t n_others = n_heads % n_taken;
    const bool has_slots = n_taken + n_others <= n_slots;
    return heads_are_alike(params) && pays_alone(params, n_workers) && has_slots &&
                   plan->packed_size <= WHOLE_MAX
               ? n_heads - n_others
               : 0;
}

/* ---- The workspace ---- */

/* *total += the product of the factors, rounded up to the alignment; false when it overflows. */
static bool reserve(uint64_t *total, const uint64_t *factors, int n) {
    uint64_t size = 1;
    for (int i = 0; i < n; i++)
        if (__builtin_mul_overflow(size, factors[i], &size))
            return false;
    return !__builtin_add_overflow(size, ALIGNMENT - 1, &size) &&
           !__builtin_add_overflow(*total, size / ALIGNMENT * ALIGNMENT, total);
}

static int64_t most_slots(const cpu_plan_t *plan, int32_t n_workers) {
    return slots_of(plan, n_workers, cpu_plan_turns(plan, n_workers, plan->max_slots));
}

static bool lay_out(cpu_plan_t *plan, const flash_params_t *p) {
    const uint64_t first_item[] = {(uint64_t)p->batch + 1, sizeof(int64_t)};
    const uint64_t n_left[] = {(uint64_t)p->batch, (uint64_t)p->n_heads_kv, sizeof(int64_t)};
    const uint64_t partial[] = {(uint64_t)p->batch, (uint64_t)p->n_heads_kv,
                                (uint64_t)plan->partial_rows, sizeof(float), (uint64_t)p->d_head};
    uint64_t total = 0;
    if (!reserve(&total, first_item, 2))
        return false;
    plan->n_left_at = total;
    if (!reserve(&total, n_left, 3))
        return false;
    plan->o_partial_at = total;
    if (!reserve(&total, partial, 5))
        return false;
    plan->lse_partial_at = total;
    if (!reserve(&total, partial, 4))
        return false;
    plan->scratch_at = total;
    const uint64_t scratch[] = {plan->scratch_size, (uint64_t)plan->max_workers};
    const uint64_t packed[] = {(uint64_t)most_slots(plan, plan->max_workers), plan->packed_size};
    return reserve(&total, scratch, 2) && reserve(&total, packed, 2) && total < INT64_MAX;
}

/* Threads worth waking: one for each task, and only one when there is little to do. */
static int32_t count_workers(const flash_params_t *p, const cpu_plan_t *plan, int32_t n_threads) {
    const double heads = (double)p->batch * p->n_heads_kv;
    const int64_t n_rows = (int64_t)p->seqlen_q * p->group;
    const int64_t n_blocks = cpu_cut_count_tasks(plan->config->B_r, plan->rows_per_task, n_rows);
    const double n_tasks = heads * (double)(n_blocks * plan->max_splits);
    const double multiplications = 2 * heads * (double)n_rows * p->seqlen_k * p->d_head;
    if (multiplications < SHARE_MIN_MULTIPLICATIONS || n_tasks < 2)
        return 1;
    return n_tasks < n_threads ? (int32_t)n_tasks : n_threads;
}

/* Rows of a task where a head's tasks share packed keys: several blocks of B_r where these keys are
 * more than a level 2 cache holds and every thread has many tasks, a part of one where there are
 * fewer tasks than threads. */
static int32_t count_rows_per_task(const flash_params_t *p, const cpu_plan_t *plan,
                                   int32_t n_threads) {
    const int32_t B_r = plan->config->B_r, unit = cpu_row_unit(plan->config->arch);
    const int64_t n_rows = (int64_t)p->seqlen_q * p->group;
    const int64_t n_heads = (int64_t)p->batch * p->n_heads_kv;
    const int64_t n_many = LARGE_MIN_TASKS * (int64_t)n_threads;
    int32_t rows = plan->packed_size > TURNS_MAX ? cpu_most_task_rows(plan->config) : B_r;
    if (all_are_split(plan, p) || !cpu_shares_packed(plan->config, n_rows))
        return B_r;
    while (rows > B_r && n_heads * cpu_cut_count_tasks(B_r, rows, n_rows) < n_many)
        rows /= 2;
    while (rows % (2 * unit) == 0 && rows > 2 * unit &&
           n_heads * cpu_cut_count_tasks(B_r, rows, n_rows) < n_threads)
        rows /= 2;
    return rows;
}

/* Tasks of split sequences, with so many heads each. */
static int64_t count_split_tasks(const flash_params_t *p, const cpu_plan_t *plan, int64_t heads) {
    return (int64_t)p->batch * plan->max_splits * divide_up(p->n_heads_kv, heads);
}

/* Whether tasks read keys in steps because these lie so far apart. */
static bool reads_steps(const flash_params_t *p, const cpu_plan_t *plan) {
    const int32_t arch = plan->config->arch;
    const int64_t few_sets = CPU_FEW_SETS_BYTES / dtype_size(plan->config->dtype);
    const bool has_steps = arch != FLASH_ARCH_NEON && arch != FLASH_ARCH_NEON_BF16;
    const bool on_tiles =
        arch == FLASH_ARCH_AMX && amx_decodes(plan->config, plan->max_rows, p->d_head);
    return has_steps && !on_tiles && p->k_stride.seq % few_sets == 0;
}

/* Where the heads of a key lie side by side, they are read together, which is near the order of
 * memory, as many as leave tasks enough. */
static int32_t count_heads_together(const flash_params_t *p, const cpu_plan_t *plan,
                                    int32_t n_threads) {
    const int64_t bytes = reads_steps(p, plan) ? TOGETHER_STEPS_BYTES : TOGETHER_BLOCKS_BYTES;
    const int64_t fitting = bytes / (p->d_head * dtype_size(plan->config->dtype));
    const int64_t most =
        min64(cpu_most_heads(plan->config, plan->max_rows, p->d_head), p->n_heads_kv);
    const int64_t n_tasks = TOGETHER_MIN_TASKS * (int64_t)n_threads;
    int64_t heads = max64(1, min64(most, fitting));
    if (!lie_side_by_side(&p->k_stride) || !lie_side_by_side(&p->v_stride))
        return 1;
    while (heads > 1 && count_split_tasks(p, plan, heads) < n_tasks)
        heads /= 2;
    return (int32_t)heads;
}

flash_status_t cpu_plan_make(const flash_config_t *config, const flash_params_t *params,
                             int32_t n_threads, cpu_plan_t *plan) {
    const int64_t n_rows = (int64_t)params->seqlen_q * params->group;
    const bool ragged = params->cu_seqlens_q != NULL;
    *plan = (cpu_plan_t){.config = config};
    plan->max_rows = min64(n_rows, cpu_most_split_rows(config));
    plan->max_splits =
        cpu_cut_count_splits(config, params->n_heads_kv, ragged ? 1 : n_rows, params->seqlen_k);
    plan->partial_rows = cpu_cut_partial_rows(plan->max_splits, plan->max_rows, params->seqlen_k);
    plan->heads_together = count_heads_together(params, plan, n_threads);
    plan->packed_size = cpu_packed_size(config, params->d_head, params->seqlen_k);
    plan->rows_per_task = count_rows_per_task(params, plan, n_threads);
    plan->max_slots = count_slots(plan, params);
    plan->max_turns = count_turns(plan, params);
    plan->scratch_size = cpu_scratch_size(
        config, max64(plan->rows_per_task, plan->max_splits > 1 ? plan->max_rows : 0),
        params->d_head);
    plan->max_workers = count_workers(params, plan, n_threads);
    FLASH_REQUIRE(lay_out(plan, params), FLASH_ERROR_UNSUPPORTED,
                  "the workspace of batch %d, %d K/V heads, seqlen_k %d, d_head %d overflows 64 "
                  "bits",
                  params->batch, params->n_heads_kv, params->seqlen_k, params->d_head);
    return FLASH_SUCCESS;
}

static uint64_t bytes_before_packed(const cpu_plan_t *plan, int32_t n_workers) {
    return ALIGNMENT - 1 + plan->scratch_at + (uint64_t)n_workers * plan->scratch_size;
}

uint64_t cpu_plan_workspace(const cpu_plan_t *plan, int32_t n_workers) {
    return bytes_before_packed(plan, n_workers) +
           (uint64_t)most_slots(plan, n_workers) * plan->packed_size;
}

uint64_t cpu_plan_least_workspace(const cpu_plan_t *plan, int32_t n_workers) {
    return bytes_before_packed(plan, n_workers) +
           (uint64_t)slots_of(plan, n_workers, 1) * plan->packed_size;
}

int32_t cpu_plan_workers(const cpu_plan_t *plan, uint64_t workspace_size) {
    int32_t n_workers = plan->max_workers;
    while (n_workers > 0 && cpu_plan_least_workspace(plan, n_workers) > workspace_size)
        n_workers--;
    return n_workers;
}

int64_t cpu_plan_slots(const cpu_plan_t *plan, int32_t n_workers, uint64_t workspace_size) {
    const uint64_t left = workspace_size - bytes_before_packed(plan, n_workers);
    const uint64_t fitting = plan->max_slots == 0 ? 0 : left / plan->packed_size;
    const int64_t most = most_slots(plan, n_workers);
    return fitting < (uint64_t)most ? (int64_t)fitting : most;
}
