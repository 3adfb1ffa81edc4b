/*
 * A pair is a block of rows and a block of keys, and says which of these the rows see.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_PAIR_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_PAIR_H

#include "cpu/tiled/gradient_gather.h"
#include "cpu/tiled/softmax.h"

/* P of a key that a row does not see. It is 0, and no P of another one has its sign. */
static const float HIDDEN = -0.0f;

ALWAYS_INLINE bool is_hidden(float p) {
    return fp32_to_bits(p) == 0x80000000;
}

/* A block of rows and a block of keys. */
typedef struct gradient_pair {
    const flash_params_t *p;
    const gradient_block_t *rows;
    flash_range_t keys;
    flash_range_t common; /* keys that all of the rows see, of the whole sequence */
    softmax_rule_t rule;
} gradient_pair_t;

static inline gradient_pair_t pair_of(const flash_params_t *p, const gradient_block_t *rows,
                                      flash_range_t keys) {
    gradient_pair_t pair = {p, rows, keys, {0, INT32_MAX}, softmax_rule(p)};
    for (int64_t row = 0; row < rows->seen.n_rows; row++) {
        pair.common.begin = max32(pair.common.begin, rows->seen.begin[row]);
        pair.common.end = min32(pair.common.end, rows->seen.end[row]);
    }
    return pair;
}

/* Says whether all of the rows see all of some columns of the block. */
ALWAYS_INLINE bool all_see(const gradient_pair_t *pair, flash_range_t columns) {
    return pair->common.begin <= pair->keys.begin + columns.begin &&
           pair->common.end >= pair->keys.begin + columns.end;
}

/* Returns the columns of the block that any of some rows sees. */
static inline flash_range_t seen_columns(const gradient_pair_t *pair, int64_t row, int rows) {
    const flash_range_t all = {0, pair->keys.end - pair->keys.begin};
    flash_range_t common, any;
    if (all_see(pair, all))
        return all;
    tile_columns(&pair->rows->seen, pair->keys, row, rows, &common, &any);
    return any;
}

#endif
