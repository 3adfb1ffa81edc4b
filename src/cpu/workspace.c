/*
 * This file bounds the workspace for a problem and all smaller ones: the largest need of all ways
 * that one of them may go, made of quantities that only grow with lengths and threads.
 */
#include "cpu/workspace.h"

#include "core/int64.h"
#include "cpu/cut.h"
#include "cpu/lengths.h"
#include "cpu/way.h"

/* ---- Sizes of the parts ---- */

static uint64_t round_up(uint64_t size) {
    const uint64_t last = saturating_add(size, CPU_WORKSPACE_ALIGNMENT - 1);
    return last == UINT64_MAX ? last : last / CPU_WORKSPACE_ALIGNMENT * CPU_WORKSPACE_ALIGNMENT;
}

static uint64_t count_heads(const flash_params_t *p) {
    return (uint64_t)p->batch * (uint64_t)p->n_heads_kv;
}

uint64_t cpu_workspace_items(const flash_params_t *p) {
    return round_up(((uint64_t)p->batch + 1) * sizeof(int64_t));
}

uint64_t cpu_workspace_left(const flash_params_t *p) {
    return round_up(saturating_multiply(count_heads(p), sizeof(int64_t)));
}

uint64_t cpu_workspace_partials(const flash_params_t *p, int64_t rows, int64_t width) {
    const uint64_t of_head = saturating_multiply((uint64_t)rows, (uint64_t)width * sizeof(float));
    return round_up(saturating_multiply(count_heads(p), of_head));
}

uint64_t cpu_workspace_packed(const cpu_family_t *family, const flash_config_t *config,
                              const flash_params_t *params, int64_t shared_keys) {
    const int64_t B_c = config->B_c, whole = divide_up(params->seqlen_k, B_c);
    const int64_t touched = divide_up(shared_keys, B_c) + 1; /* keys begin and end within blocks */
    const int64_t most = cpu_cut_most_packs(family, config, params);
    return family->packs && shared_keys > 0
               ? (uint64_t)min64(most, min64(whole, touched)) * family->block_size(config, params)
               : 0;
}

/* ---- What tasks need ---- */

/* A problem, with what bounds it and all smaller ones. */
typedef struct limits {
    const cpu_family_t *family;
    const flash_config_t *config;
    const flash_params_t *p;
    uint64_t n_heads; /* K/V heads of the whole batch */
    int64_t n_rows;   /* packed rows of a sequence */
    cpu_cut_bounds_t cut;
    bool lengths_are_equal; /* of all sequences, so that all go the same way */
    uint64_t packed;        /* bytes of a head's packed keys */
} limits_t;

static limits_t limits_of(const cpu_family_t *family, const flash_config_t *config,
                          const flash_params_t *p) {
    limits_t l = {.family = family,
                  .config = config,
                  .p = p,
                  .n_heads = count_heads(p),
                  .n_rows = (int64_t)p->seqlen_q * p->group,
                  .lengths_are_equal = problem_lengths_are_equal(p)};
    l.cut = cpu_cut_bounds(family, config, p, l.n_rows, p->seqlen_k);
    l.packed = cpu_workspace_packed(family, config, p, l.cut.shared_keys);
    return l;
}

static uint64_t scratch_of(const limits_t *l, int64_t rows) {
    return l->family->scratch_size(l->config, l->p, rows);
}

static uint64_t split_scratch(const limits_t *l) {
    return l->cut.split_rows > 0 ? scratch_of(l, l->cut.split_rows) : 0;
}

static uint64_t split_partials(const limits_t *l) {
    if (l->cut.partial_rows == 0)
        return 0;
    return saturating_add(cpu_workspace_partials(l->p, l->cut.partial_rows, l->p->d_head_v),
                          cpu_workspace_partials(l->p, l->cut.partial_rows, 1));
}

/* Counts the threads that can have LARGE_TASKS_PER_THREAD tasks of so many rows each. */
static uint64_t threads_of_large_tasks(const limits_t *l, int32_t rows) {
    const int64_t rest = min64(divide_up(l->n_rows, l->config->B_r), rows / l->config->B_r);
    const uint64_t of_head = (uint64_t)(l->n_rows / rows + rest);
    return saturating_multiply(l->n_heads, of_head) / LARGE_TASKS_PER_THREAD;
}

/* Returns the scratch bytes of at most n_workers workers whose tasks do not split the keys: of one
 * block of rows each, or of several blocks where there are fewer workers. */
static uint64_t row_scratch(const limits_t *l, uint64_t n_workers) {
    const int32_t B_r = l->config->B_r;
    uint64_t most = saturating_multiply(n_workers, scratch_of(l, B_r));
    if (l->packed <= TURNS_MAX_BYTES)
        return most;
    for (int32_t rows = cpu_way_task_rows(l->family, l->config); rows > B_r; rows /= 2) {
        const uint64_t n = min_u64(n_workers, threads_of_large_tasks(l, rows));
        most = max_u64(most, saturating_multiply(n, scratch_of(l, rows)));
    }
    return most;
}

/* ---- The least workspace ---- */

/* Sums up a call's workspace. Sequences that all have the same lengths either split their keys or
 * share packed ones; others may need the parts for both. */
static uint64_t sum_up(const limits_t *l, uint64_t n_workers, uint64_t slots) {
    const uint64_t of_split = saturating_multiply(n_workers, split_scratch(l));
    const uint64_t of_rows = row_scratch(l, n_workers);
    const uint64_t partials = split_partials(l);
    const uint64_t tasks =
        l->lengths_are_equal
            ? max_u64(saturating_add(of_split, partials), saturating_add(of_rows, slots))
            : saturating_add(max_u64(of_split, of_rows), saturating_add(partials, slots));
    const uint64_t fixed = saturating_add(cpu_workspace_items(l->p) + cpu_lengths_size(l->p),
                                          cpu_workspace_left(l->p));
    return saturating_add(saturating_add(fixed, tasks), CPU_WORKSPACE_ALIGNMENT - 1);
}

uint64_t cpu_workspace_least(const cpu_family_t *family, const flash_config_t *config,
                             const flash_params_t *params) {
    const limits_t l = limits_of(family, config, params);
    return sum_up(&l, 1, l.packed);
}

/* ---- The workspace beyond which nothing is gained ---- */

static int64_t most_tasks(const limits_t *l) {
    const int32_t B_r = l->config->B_r;
    const int32_t parts = B_r / cpu_way_least_rows(l->family, l->config);
    const int64_t n_blocks = l->n_rows / B_r * parts + (l->n_rows % B_r != 0);
    const int64_t n_splits = cpu_cut_count_splits(l->family, l->config, l->p, 1, l->p->seqlen_k);
    return max64(n_blocks, n_splits);
}

static uint64_t most_workers(const limits_t *l, int32_t n_threads) {
    const uint64_t n_tasks = saturating_multiply(l->n_heads, (uint64_t)most_tasks(l));
    return cpu_way_is_small(l->p) ? 1 : max_u64(1, min_u64((uint64_t)n_threads, n_tasks));
}

/* Returns the bytes of packed keys if each worker has `turns` whole heads at once. Where this
 * problem's heads are too long for that, those of a smaller problem count. */
static uint64_t slots_by_turns(const limits_t *l, int32_t n_threads, uint64_t turns) {
    const uint64_t block = l->family->block_size(l->config, l->p);
    const uint64_t n_workers =
        min_u64((uint64_t)n_threads, l->n_heads / (WHOLE_MIN_ROUNDS * turns));
    const uint64_t packed = min_u64(l->packed, TURNS_MAX_BYTES / turns / block * block);
    return n_workers == 0 ? 0 : saturating_multiply(2 * n_workers * turns - 1, packed);
}

/* Returns the bytes of packed keys that are kept at a time: of one head per worker and one more to
 * pack meanwhile, as many as fit PACKED_MAX_BYTES; or of whole heads, if that is more. */
static uint64_t most_slots(const limits_t *l, int32_t n_threads) {
    const uint64_t n_slots = min_u64(l->n_heads, 2 * (uint64_t)n_threads - 1);
    const uint64_t limit = max_u64(PACKED_MAX_BYTES, l->packed);
    uint64_t most = min_u64(saturating_multiply(n_slots, l->packed), limit);
    if (l->packed == 0)
        return 0;
    const uint64_t block = l->family->block_size(l->config, l->p);
    for (uint64_t turns = 2; turns <= TURNS_MAX_BYTES / block; turns++)
        most = max_u64(most, slots_by_turns(l, n_threads, turns));
    return most;
}

uint64_t cpu_workspace_full(const cpu_family_t *family, const flash_config_t *config,
                            const flash_params_t *params, int32_t n_threads) {
    const limits_t l = limits_of(family, config, params);
    const uint64_t slots = max_u64(l.packed, most_slots(&l, n_threads));
    return sum_up(&l, most_workers(&l, n_threads), slots);
}
