/*
 * A mask of blocks (FLASH_MASK_BLOCKS) is small enough to ask, before keys are packed for all tasks
 * of a head, whether anybody sees them.
 */
#ifndef FLASH_KERNELS_CPU_MASK_BLOCKS_H
#define FLASH_KERNELS_CPU_MASK_BLOCKS_H

#include "common/bias.h"
#include "cpu/cpu_kernel.h"
#include "cpu/mask_elements.h"

/* Blocks of fewer queries have too many rows to ask. */
enum { MASK_BLOCKS_MIN_QUERIES = 32 };

/* Says whether the mask leaves some of `keys` visible to some query of a head. */
static inline bool cpu_mask_shows_to_head(const flash_params_t *p, const cpu_task_t *task,
                                          flash_range_t keys, int64_t head) {
    const flash_sequence_t *s = &task->sequence;
    for (int64_t query = 0; query < s->len_q; query += p->bias.block.queries) {
        const flash_bias_row_t row = flash_bias_row(p, s, task->batch_index, head, query);
        if (cpu_mask_shows(&p->bias, &row, keys))
            return true;
    }
    return false;
}

/* Says whether a mask of blocks hides `keys` from all queries of the heads that share them, as far
 * as it is worth asking. Tasks of these leave the block out then. */
static inline bool cpu_nobody_sees(const flash_params_t *p, const cpu_task_t *task,
                                   flash_range_t keys) {
    const int64_t first = (int64_t)task->head_kv * p->group;
    if (p->bias.mask == NULL || p->bias.kind != FLASH_MASK_BLOCKS ||
        p->bias.block.queries < MASK_BLOCKS_MIN_QUERIES)
        return false;
    for (int64_t head = first; head < first + p->group; head++)
        if (cpu_mask_shows_to_head(p, task, keys, head))
            return false;
    return true;
}

#endif
