/*
 * Here the diagonal may be shifted (diagonal_offset): these find what a query sees then, and its
 * row of slopes and mask. Host code and CPU kernels ask these in place of sequence.h and bias.h,
 * which kernels for CUDA devices ask, since no problem of theirs has an offset.
 */
#ifndef FLASH_KERNELS_COMMON_SHIFTED_H
#define FLASH_KERNELS_COMMON_SHIFTED_H

#include "common/bias.h"
#include "common/params.h"
#include "common/sequence.h"

/* Returns the keys that query i of the sequence sees. From query to query both ends move right or
 * stay, also where a query sees none: such a range is at the side at which the query stands. */
static inline flash_range_t flash_shifted_keys(const flash_params_t *p, const flash_sequence_t *s,
                                               int64_t i) {
    const int64_t unshifted = i + p->diagonal_offset; /* this query would stand there without */
    flash_range_t keys = flash_visible_keys(p, s, unshifted);
    if (keys.end <= keys.begin && unshifted >= s->len_q)
        keys.begin = keys.end = s->len_k;
    return keys;
}

/* Returns the row of query i of a head. Only ALiBi's distances are shifted. Rows of blocks of
 * queries are found here too: they are another kind of mask that CUDA devices have none of. */
static inline flash_bias_row_t flash_shifted_bias_row(const flash_params_t *p,
                                                      const flash_sequence_t *s,
                                                      int64_t batch_index, int64_t head,
                                                      int64_t i) {
    flash_bias_row_t row = flash_bias_row(&p->bias, s, batch_index, head, i);
    row.diagonal += p->diagonal_offset;
    if (p->bias.kind == FLASH_MASK_BLOCKS)
        row.at = batch_index * p->bias.stride_batch + head * p->bias.stride_head +
                 i / p->bias.block.queries * p->bias.stride_query;
    return row;
}

#endif
