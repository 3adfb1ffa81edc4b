/*
 * This file plans the kernel that looks at a mask ahead of an SM90 kernel (mask_blocks_sm90.h).
 */
#include "cuda/sm90/mask_blocks_sm90.h"

#include "core/int64.h"
#include "cuda/tuning.h"
#include "kernels/sm90/mask_blocks_kernel.h"
#include "kernels/sm90/sm90_kernel.h"

#include <stdbool.h>
#include <stddef.h>

/* Says whether every sequence of the batch lies to the mask as the first one does. */
static bool has_one_entry(const flash_params_t *p) {
    return p->bias.stride_batch == 0 && p->cu_seqlens_q == NULL && p->cu_seqlens_k == NULL &&
           p->seqused_q == NULL && p->seqused_k == NULL && p->leftpad_k == NULL;
}

/* A mask of fewer keys than a block can neither hide nor spare one. */
static bool can_pay(const flash_config_t *config, const flash_params_t *p) {
    return (config->features & FLASH_FEATURE_BIAS) != 0 && p->bias.kind != 0 &&
           p->bias.n_keys >= config->B_c && config->B_c <= SM90_MASK_BLOCKS_MOST_KEYS &&
           divide_up(p->seqlen_k, config->B_c) > SM90_MASK_FEW_BLOCKS;
}

static flash_mask_blocks_t blocks_of(const flash_config_t *config, const flash_params_t *p) {
    return (flash_mask_blocks_t){.entries = has_one_entry(p) ? 1 : p->batch,
                                 .heads = p->bias.stride_head == 0 ? 1 : p->n_heads,
                                 .tiles = (int32_t)divide_up(p->seqlen_q, config->B_r),
                                 .blocks = (int32_t)divide_up(p->seqlen_k, config->B_c)};
}

/* Returns the bytes for these blocks, at most one more than SM90_MASK_MAX_BYTES. */
static int64_t bytes_of(const flash_mask_blocks_t *m) {
    const int64_t heads = min64((int64_t)m->entries * m->heads, SM90_MASK_MAX_BYTES + 1);
    return min64(min64(heads * m->tiles, SM90_MASK_MAX_BYTES + 1) * m->blocks,
                 SM90_MASK_MAX_BYTES + 1);
}

flash_mask_blocks_t mask_blocks_sm90(const flash_config_t *config, const flash_params_t *params) {
    const flash_mask_blocks_t m = blocks_of(config, params);
    const bool is_done = can_pay(config, params) && bytes_of(&m) <= SM90_MASK_MAX_BYTES;
    return is_done ? m : (flash_mask_blocks_t){.blocks = 0};
}

uint64_t mask_blocks_sm90_workspace(const flash_config_t *config, const flash_params_t *params) {
    const flash_mask_blocks_t m = blocks_of(config, params);
    return can_pay(config, params) ? (uint64_t)min64(bytes_of(&m), SM90_MASK_MAX_BYTES) : 0;
}

/* Says whether a block of keys of a tile is shown as a whole or hidden as a whole, by a mask of
 * blocks. */
static bool has_whole_tiles(const flash_config_t *config, const flash_bias_t *bias,
                            int32_t seqlen_k) {
    const int64_t end = (int64_t)bias->first_key + bias->n_keys;
    return bias->kind == FLASH_MASK_BLOCKS && bias->block.queries % config->B_r == 0 &&
           bias->block.keys % config->B_c == 0 && !bias->is_last_keys &&
           bias->first_key % config->B_c == 0 && (end % config->B_c == 0 || end >= seqlen_k);
}

const char *mask_blocks_sm90_obstacle(const flash_config_t *config, const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    if (!sm90_counts_blocks(config) || (problem->features & FLASH_FEATURE_BIAS) == 0)
        return NULL;
    if (p->bias.alibi_slopes != NULL || !has_whole_tiles(config, &p->bias, p->seqlen_k))
        return "SM90 rows with bias and fixed_reference serve no bias but masks of blocks "
               "(FLASH_MASK_BLOCKS) of a multiple of B_r queries and of B_c keys, which begin and "
               "end with a block of B_c keys";
    if (problem->batch_invariant || mask_blocks_sm90(config, p).blocks == 0)
        return "SM90 rows with bias and fixed_reference serve no batch-invariant call with a mask, "
               "and none of few or very many blocks of keys";
    return NULL;
}
