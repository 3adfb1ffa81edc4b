/*
 * This file bounds the least workspace for a problem and all smaller ones: the largest need of all
 * ways that one of them may go, made of quantities that only grow with lengths.
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

/* ---- The least workspace ---- */

/* Adds up what a sequence whose keys are split needs: scratch, and partial results of its batch. */
static uint64_t of_splits(const flash_params_t *p, const cpu_cut_bounds_t *cut, uint64_t scratch) {
    if (cut->partial_rows == 0)
        return scratch;
    return saturating_add(scratch,
                          saturating_add(cpu_workspace_partials(p, cut->partial_rows, p->d_head_v),
                                         cpu_workspace_partials(p, cut->partial_rows, 1)));
}

/* One worker has tasks of one block of rows, and packed keys of one head. Sequences that all have
 * the same lengths either split their keys or share packed ones; others may need the parts for
 * both. */
uint64_t cpu_workspace_least(const cpu_family_t *family, const flash_config_t *config,
                             const flash_params_t *p) {
    const int64_t n_rows = (int64_t)p->seqlen_q * p->group;
    const cpu_cut_bounds_t cut = cpu_cut_bounds(family, config, p, n_rows, p->seqlen_k);
    const uint64_t packed = cpu_workspace_packed(family, config, p, cut.shared_keys);
    const uint64_t of_rows = family->scratch_size(config, p, config->B_r);
    const uint64_t of_split =
        cut.split_rows > 0 ? family->scratch_size(config, p, cut.split_rows) : 0;
    const uint64_t tasks =
        problem_lengths_are_equal(p)
            ? max_u64(of_splits(p, &cut, of_split), saturating_add(of_rows, packed))
            : saturating_add(of_splits(p, &cut, max_u64(of_split, of_rows)), packed);
    const uint64_t fixed =
        saturating_add(cpu_workspace_items(p) + cpu_lengths_size(p), cpu_workspace_left(p));
    return saturating_add(saturating_add(fixed, tasks), CPU_WORKSPACE_ALIGNMENT - 1);
}
