/*
 * This file plans the launches of decode kernels.
 */
#include "cuda/decode/plan_decode.h"

#include "config/config.h"
#include "core/int64.h"
#include "cuda/tuning.h"
#include "kernels/common/decode_cut.h"

#include <stddef.h>

enum { WORKSPACE_ALIGNMENT = 256 };

int64_t plan_decode_tiles(const flash_config_t *config, const flash_params_t *p) {
    const int64_t rows = (int64_t)p->seqlen_q * p->group;
    return divide_up(rows, config->B_r) * p->n_heads_kv * p->batch;
}

/* Counts the blocks that the device runs side by side. */
static int64_t resident_blocks(const flash_config_t *config, const device_t *device) {
    const int64_t shared_bytes = decode_shared_bytes(config) + DECODE_STATIC_SHARED_BYTES;
    const int64_t of_device = device->shared_memory_per_block / shared_bytes;
    const int64_t per_multiprocessor = min64(decode_blocks_per_sm(config), of_device);
    return device->n_multiprocessors * max64(per_multiprocessor, 1);
}

/* Returns the heads of a block. Several heads side by side read longer rows of memory, which pays
 * if the whole batch then fits blocks that all run at once (measured on an H200). */
static int32_t heads_per_block(const flash_params_t *p, int64_t items,
                               const decode_limits_t *limits) {
    for (int32_t heads = 2; items > limits->resident && heads <= limits->most_heads; heads *= 2)
        if (p->n_heads_kv % heads == 0 && items / heads <= limits->resident)
            return heads;
    return 1;
}

static int64_t units_of(int64_t keys) {
    return divide_up(keys, DECODE_UNIT_KEYS);
}

/* Says whether that number of blocks gives nearly every multiprocessor one. Then cutting into more
 * pieces does not pay. */
static bool fills_once(int64_t blocks, int64_t n_multiprocessors) {
    return blocks <= n_multiprocessors &&
           8 * blocks >= SM80_DECODE_FULL_EIGHTHS * n_multiprocessors;
}

static int32_t count_pieces(const flash_params_t *p, int64_t items, int64_t n_multiprocessors,
                            const decode_limits_t *limits) {
    const int64_t keys = problem_most_keys(p);
    const int64_t busy =
        min64(n_multiprocessors / max64(items, 1), divide_up(keys, limits->least_keys));
    const int64_t of_length =
        fills_once(items, n_multiprocessors) ? 1 : divide_up(keys, limits->long_keys);
    const int64_t pieces = max64(busy, of_length);
    return (int32_t)max64(min64(limits->resident / max64(items, 1), pieces), 1);
}

/* Plans for lengths that the host knows: all sequences have the same number of pieces. */
static void plan_known_lengths(decode_plan_t *plan, int64_t n_multiprocessors,
                               const decode_limits_t *limits) {
    decode_params_t *params = &plan->params;
    const flash_params_t *p = &params->attention;
    const int64_t items = (int64_t)p->batch * params->row_tiles * params->head_blocks;
    params->pieces = limits->known_pieces > 0 ? limits->known_pieces
                                              : count_pieces(p, items, n_multiprocessors, limits);
    plan->blocks = items * params->pieces;
    plan->splits = params->pieces > 1 ? p->batch : 0;
    plan->slots = limits->most_blocks;
}

/* Plans for a batch that the device cuts. Sequences longer than a share become pieces of about a
 * share. A share is at least the batch's units over `most`, so fewer than `most` sequences are cut,
 * into fewer than 2 * most pieces, and all pieces are fewer than `most` + batch. */
static void plan_cut_by_share(decode_plan_t *plan, int64_t n_multiprocessors,
                              const decode_limits_t *limits) {
    decode_params_t *params = &plan->params;
    const int64_t batch = params->attention.batch;
    const int64_t of_sequence = (int64_t)params->row_tiles * params->head_blocks;
    const int64_t given = limits->batch_pieces;
    const int64_t most = given > 0 ? given : divide_up(limits->resident, of_sequence);
    const int64_t busy = given > 0 ? given : n_multiprocessors / of_sequence;
    params->busy_pieces = (int32_t)max64(busy, 1);
    params->most_pieces = (int32_t)most;
    params->least_share = limits->least_keys / DECODE_UNIT_KEYS;
    params->long_share = limits->long_keys / DECODE_UNIT_KEYS;
    plan->blocks = (batch + most - 1) * of_sequence;
    plan->splits = min64(batch, most);
    plan->slots = 2 * (limits->most_blocks + of_sequence);
}

/* Plans for a batch whose keys are divided into parts, each walked by a block. Two neighbours have
 * a piece of at most one sequence. The slots are those of calls that are not divided, because a
 * smaller one may be such. */
static void plan_parts(decode_plan_t *plan, bool known, const decode_limits_t *limits) {
    decode_params_t *params = &plan->params;
    const int64_t of_sequence = (int64_t)params->row_tiles * params->head_blocks;
    params->parts = limits->parts;
    plan->blocks = limits->parts * of_sequence;
    plan->splits = min64(params->attention.batch, limits->parts - 1);
    plan->slots = known ? limits->most_blocks : 2 * (limits->most_blocks + of_sequence);
}

/* Counts the pieces of each sequence where all have the same known length. */
static int32_t own_pieces(const decode_params_t *params) {
    const flash_params_t *p = &params->attention;
    const flash_sequence_t sequence = flash_sequence(p, 0);
    const unit_range_t units = decode_visible_units(p, &sequence);
    return decode_count_pieces(units.end - units.begin, decode_own_cut(params));
}

/* Plans for sequences that are each cut by their own length, by the host if it knows that. */
static void plan_cut_by_length(decode_plan_t *plan, bool known, int64_t n_multiprocessors,
                               const decode_limits_t *limits) {
    decode_params_t *params = &plan->params;
    const flash_params_t *p = &params->attention;
    const int64_t of_piece = (int64_t)params->row_tiles * params->head_blocks;
    params->least_share = limits->invariant_keys / DECODE_UNIT_KEYS;
    params->own_pieces = (int32_t)max64(n_multiprocessors / p->n_heads_kv, 1);
    params->pieces = known ? own_pieces(params) : 0;
    const int32_t most =
        decode_count_pieces((int32_t)units_of(p->seqlen_k), decode_own_cut(params));
    plan->blocks = p->batch * of_piece * (known ? params->pieces : most);
    plan->splits = (known ? params->pieces : most) > 1 ? p->batch : 0;
    plan->slots = most > 1 ? p->batch * of_piece * most : 0;
}

decode_plan_t plan_decode(const flash_config_t *config, const problem_t *problem,
                          const device_t *device, const decode_limits_t *limits) {
    decode_plan_t plan = {.params = {.attention = problem->params}};
    decode_params_t *params = &plan.params;
    const flash_params_t *p = &params->attention;
    const int64_t rows = (int64_t)p->seqlen_q * p->group;
    const bool known = problem_lengths_are_equal(p);
    params->row_tile = config->B_r;
    params->row_tiles = (int32_t)max64(divide_up(rows, config->B_r), 1);
    params->heads_per_block = 1;
    if (known && !problem->batch_invariant)
        params->heads_per_block =
            heads_per_block(p, (int64_t)p->batch * p->n_heads_kv * params->row_tiles, limits);
    params->head_blocks = p->n_heads_kv / params->heads_per_block;
    params->columns = config_d_head_v(config);
    if (limits->parts > 0)
        plan_parts(&plan, known, limits);
    else if (problem->batch_invariant)
        plan_cut_by_length(&plan, known && p->pages.page_size == 0, device->n_multiprocessors,
                           limits);
    else if (known)
        plan_known_lengths(&plan, device->n_multiprocessors, limits);
    else
        plan_cut_by_share(&plan, device->n_multiprocessors, limits);
    params->row_parts = (int32_t)divide_up(params->columns, DECODE_MERGE_COLUMNS);
    plan.merge_parts = plan.splits * p->n_heads_kv * rows * params->row_parts;
    params->merge_parts = (uint32_t)plan.merge_parts;
    return plan;
}

decode_plan_t plan_sm80_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device) {
    const int64_t resident = resident_blocks(config, device);
    const decode_limits_t limits = {.resident = resident,
                                    .most_blocks = resident,
                                    .most_heads = DECODE_MOST_HEADS_PER_BLOCK,
                                    .least_keys = PIECE_MIN_KEYS,
                                    .long_keys = SM80_DECODE_LONG_KEYS,
                                    .invariant_keys = SM80_DECODE_INVARIANT_KEYS};
    return plan_decode(config, problem, device, &limits);
}

/* ---- The workspace: partial rows of O, their weights, and the sequences that are cut ---- */

static uint64_t aligned(uint64_t bytes) {
    return (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
}

static uint64_t partial_rows(const decode_plan_t *plan) {
    return (uint64_t)plan->slots * (uint64_t)plan->params.row_tile;
}

static uint64_t output_bytes(const decode_plan_t *plan) {
    return aligned(partial_rows(plan) * (uint64_t)plan->params.columns * sizeof(float));
}

static uint64_t weight_bytes(const decode_plan_t *plan) {
    return aligned(partial_rows(plan) * sizeof(decode_weight_t));
}

/* There is one decode_split_t per cut sequence, which has at least two slots. */
static uint64_t split_bytes(const decode_plan_t *plan) {
    return aligned((uint64_t)plan->slots * sizeof(decode_split_t));
}

uint64_t plan_decode_workspace(const decode_plan_t *plan) {
    const uint64_t n_splits_and_alignment = (uint64_t)2 * WORKSPACE_ALIGNMENT;
    return output_bytes(plan) + weight_bytes(plan) + split_bytes(plan) + n_splits_and_alignment;
}

const char *plan_decode_obstacle(const cuda_family_t *family, const flash_config_t *config,
                                 const problem_t *problem, const device_t *device) {
    const char *of_launch = cuda_launch_obstacle(family, config, problem, device);
    if (of_launch != NULL)
        return of_launch;
    const decode_plan_t plan = family->plan(config, problem, device);
    return plan.blocks > INT32_MAX || plan.merge_parts > INT32_MAX
               ? "the problem has more pieces than a launch can take"
               : NULL;
}

/* Dividers are not part of the plan, because selection makes plans and does not need them. */
static void set_dividers(decode_params_t *params) {
    const int32_t page_size = params->attention.pages.page_size;
    params->by_head_blocks = flash_divider(params->head_blocks);
    params->by_row_tiles = flash_divider(params->row_tiles);
    params->by_pieces = flash_divider(params->pieces > 0 ? params->pieces : 1);
    params->by_group = flash_divider(params->attention.group);
    params->by_page_size = flash_divider(page_size > 0 ? page_size : 1);
}

void plan_decode_place(decode_plan_t *plan, void *workspace) {
    decode_params_t *params = &plan->params;
    const uint64_t begin = (uint64_t)(uintptr_t)workspace;
    char *next = (char *)workspace + (aligned(begin) - begin);
    params->partial_o = (float *)next;
    next += output_bytes(plan);
    params->partial_weights = (decode_weight_t *)next;
    next += weight_bytes(plan);
    params->splits = (decode_split_t *)next;
    next += split_bytes(plan);
    params->n_splits = (int32_t *)next;
    set_dividers(params);
}
