/*
 * Long sums in parts: after some keys, O and the sum of P of a row are added to totals in double,
 * and start again. A chain of 2^20 additions of fp32 would lose four digits.
 */
#ifndef FLASH_KERNELS_CPU_TILED_TOTALS_H
#define FLASH_KERNELS_CPU_TILED_TOTALS_H

#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

#include <string.h>

/* Keys of a part, counted from the sequence's first key: as many as numbers that fp32 adds up, one
 * after the other, within a part of 1e-5 even where all of these errors have the same sign. P V of
 * a block of packed keys is one number (multiply.h), so that a part has more keys there. */
enum { PART_KEYS_IN_PLACE = 512, PART_BLOCKS_PACKED = 32 };

static inline void move_sums(float *from, double *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += (double)from[i];
    memset(from, 0, (size_t)n * sizeof *from);
}

static inline void end_part(const tile_scratch_t *t, int64_t row) {
    double *sum_total = t->sum_total + row * 16, *o_total = t->o_total + row * t->d_pad;
    if (!t->has_totals[row]) {
        memset(sum_total, 0, 16 * sizeof *sum_total);
        memset(o_total, 0, (size_t)t->d_pad * sizeof *o_total);
    }
    t->has_totals[row] = true;
    move_sums(t->sum + row * 16, sum_total, VEC_WIDTH);
    move_sums(t->o + row * t->d_pad, o_total, t->d_pad);
}

/* Ends the part of each row that sees keys on both sides of key number `end`: what a row has in
 * parts depends on its own keys alone. */
NEVER_INLINE void end_parts(const tile_scratch_t *t, int32_t end) {
    for (int64_t row = 0; row < t->n_rows; row++)
        if (t->begin[row] < end && end < t->end[row])
            end_part(t, row);
}

/* After a block of keys: ends the parts that end within it. */
ALWAYS_INLINE void end_block(const tile_scratch_t *t, flash_range_t block, int32_t part_keys) {
    if (block.begin / part_keys != block.end / part_keys)
        end_parts(t, block.end);
}

static inline void add_totals(const double *totals, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)(totals[i] + (double)to[i]);
}

/* After the last block: O and the sums become those of all parts. */
static inline void add_parts(const tile_scratch_t *t) {
    for (int64_t row = 0; row < t->n_rows; row++) {
        if (!t->has_totals[row])
            continue;
        add_totals(t->sum_total + row * 16, t->sum + row * 16, VEC_WIDTH);
        add_totals(t->o_total + row * t->d_pad, t->o + row * t->d_pad, t->d_pad);
    }
}

#endif
