/*
 * See plan_sm80_decode.h.
 */
#include "cuda/plan_sm80_decode.h"

#include <stdlib.h>

enum {
    WORKSPACE_ALIGNMENT = 256,
    /* Pieces shorter than this cost more than they save. */
    LEAST_PIECE_KEYS = 128
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool host_knows_lengths(const flash_params_t *p) {
    return p->cu_seqlens_k == NULL && p->seqused_k == NULL && p->cu_seqlens_q == NULL &&
           p->seqused_q == NULL;
}

/* Blocks that a device runs side by side. */
static int64_t resident_blocks(const flash_config_t *config, const device_t *device) {
    return (int64_t)device->n_multiprocessors * decode_blocks_per_sm(config);
}

static int32_t heads_per_block(const flash_config_t *config, const flash_params_t *p,
                               int64_t resident) {
    const int64_t items = (int64_t)p->batch * p->n_heads_kv;
    (void)config;
    if (getenv("DEC_HG"))
        return atoi(getenv("DEC_HG"));
    for (int32_t heads = DECODE_MOST_HEADS_PER_BLOCK; heads > 1; heads /= 2)
        if (p->n_heads_kv % heads == 0 && items / heads >= resident / 4)
            return heads;
    return 1;
}

/* Pieces of each sequence, of lengths that the host knows. */
static int32_t count_pieces(const flash_params_t *p, int64_t items, int64_t resident) {
    const int64_t most = ceil_div(problem_most_keys(p), LEAST_PIECE_KEYS);
    int64_t pieces = min64(resident / items, most);
    if (getenv("DEC_PIECES"))
        pieces = atoi(getenv("DEC_PIECES"));
    return pieces > 1 ? (int32_t)pieces : 1;
}

/* The batch, cut by the device: at most target pieces more than it has sequences. */
static void plan_cut_on_device(decode_plan_t *plan, int64_t items_of_sequence, int64_t resident) {
    sm80_decode_params_t *params = &plan->params;
    const int64_t batch = params->attention.batch;
    const char *aim = getenv("DEC_AIM");
    const int64_t target = ceil_div(aim ? atoi(aim) : resident, items_of_sequence);
    params->pieces = 0;
    params->target_pieces = (int32_t)target;
    params->min_units = LEAST_PIECE_KEYS / DECODE_UNIT_KEYS;
    /* A sequence that is cut has more than an even share: there are fewer than target of them, and
     * their pieces are fewer than twice target. */
    plan->most_splits = min64(batch, target);
    plan->blocks = (batch + target) * items_of_sequence;
    plan->slots = min64(2 * target, batch + target) * items_of_sequence;
}

static void plan_known_lengths(decode_plan_t *plan, int64_t items_of_sequence, int64_t resident) {
    sm80_decode_params_t *params = &plan->params;
    const int64_t items = params->attention.batch * items_of_sequence;
    params->pieces = count_pieces(&params->attention, items, resident);
    plan->blocks = items * params->pieces;
    plan->most_splits = params->pieces > 1 ? params->attention.batch : 0;
    plan->slots = params->pieces > 1 ? plan->blocks : 0;
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
}

/* Bytes of each part of the workspace. */
static uint64_t rows_of_slots(const decode_plan_t *plan) {
    return (uint64_t)plan->slots * (uint64_t)plan->params.heads_per_block *
           (uint64_t)plan->params.row_tile;
}

static uint64_t output_bytes(const decode_plan_t *plan) {
    return aligned(rows_of_slots(plan) * (uint64_t)plan->params.columns * sizeof(float));
}

static uint64_t weight_bytes(const decode_plan_t *plan) {
    return aligned(rows_of_slots(plan) * sizeof(decode_weight_t));
}

static uint64_t split_bytes(const decode_plan_t *plan) {
    return aligned((uint64_t)plan->most_splits * sizeof(decode_split_t));
}

static uint64_t workspace_bytes(const decode_plan_t *plan) {
    if (plan->slots == 0)
        return 0;
    return output_bytes(plan) + weight_bytes(plan) + split_bytes(plan) +
           (uint64_t)2 * WORKSPACE_ALIGNMENT;
}

decode_plan_t plan_sm80_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device) {
    decode_plan_t plan = {.params = {.attention = problem->params}};
    sm80_decode_params_t *params = &plan.params;
    const flash_params_t *p = &params->attention;
    const int64_t resident = resident_blocks(config, device);
    params->heads_per_block = heads_per_block(config, p, resident);
    params->head_blocks = p->n_heads_kv / params->heads_per_block;
    params->row_tile = config->B_r;
    params->row_tiles = (int32_t)ceil_div((int64_t)p->seqlen_q * p->group, config->B_r);
    params->o_dtype = problem->dtype;
    params->columns = config->d_head;
    params->dry = getenv("DEC_DRY") ? atoi(getenv("DEC_DRY")) : 0;
    const int64_t items_of_sequence = (int64_t)params->head_blocks * params->row_tiles;
    if (host_knows_lengths(p))
        plan_known_lengths(&plan, items_of_sequence, resident);
    else
        plan_cut_on_device(&plan, items_of_sequence, resident);
    plan.combine_blocks = plan.most_splits * p->n_heads_kv * p->seqlen_q * p->group;
    params->by_head_blocks = flash_divider(params->head_blocks);
    params->by_row_tiles = flash_divider(params->row_tiles);
    params->by_pieces = flash_divider(params->pieces > 0 ? params->pieces : 1);
    params->by_group = flash_divider(p->group);
    params->by_page_size = flash_divider(p->pages.page_size > 0 ? p->pages.page_size : 1);
    plan.workspace_size = workspace_bytes(&plan);
    return plan;
}

void plan_sm80_decode_place(decode_plan_t *plan, void *workspace) {
    sm80_decode_params_t *params = &plan->params;
    if (plan->slots == 0)
        return;
    char *next = (char *)aligned((uint64_t)(uintptr_t)workspace);
    params->partial_o = (float *)next;
    next += output_bytes(plan);
    params->partial_weights = (decode_weight_t *)next;
    next += weight_bytes(plan);
    params->splits = (decode_split_t *)next;
    next += split_bytes(plan);
    params->n_splits = (int32_t *)next;
}
