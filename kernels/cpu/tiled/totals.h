/*
 * Long sums are cut into parts. At the end of each part, O and the sum of P of a row are added to
 * totals in double, and start again. A chain of 2^20 additions in fp32 would lose four digits.
 */
#ifndef FLASH_KERNELS_CPU_TILED_TOTALS_H
#define FLASH_KERNELS_CPU_TILED_TOTALS_H

#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

#include <string.h>

/* Keys of a part, counted from the sequence's first key: few enough that fp32 adds them up within
 * 1e-5 even if all errors have the same sign. P V of a block of packed keys is one addition
 * (multiply.h), so that a part has more keys there. */
enum { PART_KEYS_IN_PLACE = 512, PART_BLOCKS_PACKED = 32 };

static inline void move_sums(float *from, double *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += (double)from[i];
    memset(from, 0, (size_t)n * sizeof *from);
}

static inline void end_part(const tile_scratch_t *t, int64_t row) {
    double *sum_total = t->sum_total + row * 16, *o_total = t->o_total + row * t->d_v_pad;
    if (!t->has_totals[row]) {
        memset(sum_total, 0, 16 * sizeof *sum_total);
        memset(o_total, 0, (size_t)t->d_v_pad * sizeof *o_total);
    }
    t->has_totals[row] = true;
    move_sums(t->sum + row * 16, sum_total, VEC_WIDTH);
    move_sums(t->o + row * t->d_v_pad, o_total, t->d_v_pad);
}

/* Ends the part of each row that sees keys on both sides of key `end`. So a row's parts depend
 * only on its own keys. */
NEVER_INLINE void end_parts(const tile_scratch_t *t, int32_t end) {
    for (int64_t row = 0; row < t->n_rows; row++)
        if (t->begin[row] < end && end < t->end[row])
            end_part(t, row);
}

/* Ends the parts that end within the block. */
ALWAYS_INLINE void end_block(const tile_scratch_t *t, flash_range_t block, int32_t part_keys) {
    if (block.begin / part_keys != block.end / part_keys)
        end_parts(t, block.end);
}

static inline void add_totals(const double *totals, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)(totals[i] + (double)to[i]);
}

/* Adds all parts to O and the sums, after the last block. */
static inline void add_parts(const tile_scratch_t *t) {
    for (int64_t row = 0; row < t->n_rows; row++) {
        if (!t->has_totals[row])
            continue;
        add_totals(t->sum_total + row * 16, t->sum + row * 16, VEC_WIDTH);
        add_totals(t->o_total + row * t->d_v_pad, t->o + row * t->d_v_pad, t->d_v_pad);
    }
}

#endif
