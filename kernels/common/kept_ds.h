/*
 * A kernel of dK and dV may keep dS, rounded to 16 bits, for a kernel that multiplies it with K to
 * dQ: five products instead of seven. Here is where tiles of dS lie in the workspace. What is
 * inside a tile is the family's.
 *
 * dS of a query head of a sequence has rows of tiles. A row has places for the most tiles that some
 * row sees, from the first one on that this row sees:
 *
 *     window        x x x . . .      3 places each       x x x
 *                   . x x x . .                          x x x
 *                   . . x x x .                          x x x
 *
 * Under a causal mask without a window the last row and the first share places, and so on, if all
 * lengths are known to the host:
 *
 *     causal        a . . .          row 0 and 3         a d d d d
 *                   b b . .          row 1 and 2         b b c c c
 *                   c c c .
 *                   d d d d
 *
 * Sequences of a ragged batch lie one after the other, and each begins with a row of its own.
 */
#ifndef FLASH_KERNELS_COMMON_KEPT_DS_H
#define FLASH_KERNELS_COMMON_KEPT_DS_H

#include "common/host_device.h"
#include "common/params.h"
#include "common/sequence.h"

#include <stdint.h>

/* The batch entries and K/V heads that a launch computes, with the query heads of these. Its heads
 * are numbered head first, then batch entry. */
typedef struct flash_section {
    int32_t first_batch;
    int32_t n_batch;
    int32_t first_head;
    int32_t n_heads;
} flash_section_t;

typedef struct flash_kept_ds {
    void *data;               /* NULL: dS is not kept */
    int64_t head_tiles;       /* places of a query head, of the whole batch if it is ragged */
    int32_t batch_heads;      /* query heads from one batch entry to the next; 0 if it is ragged */
    int32_t row_places;       /* of a row, or of the two that share them */
    int32_t rows;             /* of tiles, of a sequence */
    int32_t is_folded;        /* 1: two rows share places */
    int32_t has_row_of_batch; /* 1: the batch is ragged */
} flash_kept_ds_t;

/* Returns the number of the place of tile `column` in row `row` of tiles of a sequence, both of
 * them numbered from its first query and key on. queries: of a tile. first: the first tile that the
 * row sees. */
FLASH_HOST_DEVICE static inline int64_t
flash_kept_place(const flash_kept_ds_t *ds, const flash_section_t *section, int32_t group,
                 const flash_sequence_t *s, int32_t batch_index, int32_t head, int32_t queries,
                 int32_t row, int32_t column, int32_t first) {
    const int64_t plane = (int64_t)(batch_index - section->first_batch) * ds->batch_heads + head -
                          (int64_t)section->first_head * group;
    const int64_t begin = ds->has_row_of_batch ? s->q_begin / queries + batch_index : 0;
    const int is_last = ds->is_folded & (2 * (int64_t)row >= ds->rows);
    const int32_t place = is_last ? ds->row_places - 1 - column : column - first;
    return plane * ds->head_tiles +
           (begin + (is_last ? ds->rows - 1 - row : row)) * ds->row_places + place;
}

/* Returns the first tile that a row of tiles sees. */
FLASH_HOST_DEVICE static inline int32_t flash_kept_first(const flash_params_t *p,
                                                         const flash_sequence_t *s, int32_t queries,
                                                         int32_t keys, int32_t row) {
    return flash_visible_keys(p, s, (int64_t)row * queries).begin / keys;
}

#endif
