/*
 * CPU kernels find the row of a query's slopes and mask here, that of a mask of blocks too, which
 * CUDA devices have none of.
 */
#ifndef FLASH_KERNELS_CPU_BIAS_ROW_H
#define FLASH_KERNELS_CPU_BIAS_ROW_H

#include "common/bias.h"

/* Returns the row of query i of a head. */
static inline flash_bias_row_t cpu_bias_row(const flash_params_t *p, const flash_sequence_t *s,
                                            int64_t batch_index, int64_t head, int64_t i) {
    flash_bias_row_t row = flash_bias_row(p, s, batch_index, head, i);
    if (p->bias.kind == FLASH_MASK_BLOCKS)
        row.at = batch_index * p->bias.stride_batch + head * p->bias.stride_head +
                 i / p->bias.block.queries * p->bias.stride_query;
    return row;
}

#endif
