/*
 * The keys of a whole batch are divided into equal parts by this arithmetic: each is walked by one
 * block, which takes a part of a sequence, whole sequences, and a part of another one. It is for
 * device code, and for tests of the host's bounds on the result.
 *
 *     sequence   | 0       | 1          | 2  | 3                   |
 *     part       | 0             | 1             | 2               |
 *     piece      | 0       | 0   | 1    | 0  | 0 | 1               |
 *
 * Keys are counted in units. A sequence costs its units and, for what a block does around them,
 * DECODE_UNITS_AROUND more, which are its last. A part has a share of all costs. Where a cut would
 * leave a few units of a sequence on one side, the other side takes these too.
 *
 * A sequence whose first piece is in part f has the pieces of parts f ... l in the partial results
 * from f + s on, where s counts the sequences before it that are cut: no two of them have the same
 * place, because at most one sequence ends, and another begins, between neighbours.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_PARTS_H
#define FLASH_KERNELS_COMMON_DECODE_PARTS_H

#include "common/decode_cut.h"

/* These are estimates, in units. */
enum {
    DECODE_UNITS_AROUND = 2,  /* a sequence in a block */
    DECODE_UNITS_SNAPPED = 2, /* that a block takes beyond its share, at either end */
    DECODE_UNITS_OF_CUTS = 6, /* the time to store partial results and to merge them */
    DECODE_LEAST_PART = 4 * DECODE_UNITS_SNAPPED
};

/* Returns what a sequence of that many units costs. */
FLASH_HOST_DEVICE static inline uint32_t decode_cost(int32_t units) {
    return (uint32_t)units + DECODE_UNITS_AROUND;
}

/* Returns the costs of a part. total: of the batch; longest: of any sequence. Where all are of one
 * length, and parts of whole sequences take hardly longer, none is cut. */
FLASH_HOST_DEVICE static inline uint32_t decode_part_share(uint32_t total, uint32_t longest,
                                                           uint32_t batch, uint32_t parts) {
    const uint32_t equal = (total + parts - 1) / parts;
    const uint32_t whole = (equal + longest - 1) / longest * longest;
    if (total == longest * batch && whole <= equal + equal / 32 + DECODE_UNITS_OF_CUTS)
        return whole;
    return equal > DECODE_LEAST_PART ? equal : (uint32_t)DECODE_LEAST_PART;
}

/* The parts that have a piece of a sequence: first ... last. */
typedef struct part_range {
    uint32_t first;
    uint32_t last;
} part_range_t;

/* before: the costs of the sequences before this one. */
FLASH_HOST_DEVICE static inline part_range_t decode_parts_of(uint32_t before, int32_t units,
                                                             uint32_t share, uint32_t parts) {
    const uint32_t end = before + (uint32_t)units;
    part_range_t range = {before / share, units > 0 ? (end - 1) / share : 0};
    if ((range.first + 1) * share - before <= DECODE_UNITS_SNAPPED && range.first + 1 < parts)
        range.first++;
    if (range.last > range.first && end - range.last * share <= DECODE_UNITS_SNAPPED)
        range.last--;
    if (range.last < range.first)
        range.last = range.first;
    return range;
}

/* Returns the units of the sequence that one of its parts has, from the sequence's first on. */
FLASH_HOST_DEVICE static inline unit_range_t decode_part_units(part_range_t range, uint32_t part,
                                                               uint32_t before, int32_t units,
                                                               uint32_t share) {
    unit_range_t piece = {0, units};
    if (part > range.first)
        piece.begin = (int32_t)(part * share - before);
    if (part < range.last)
        piece.end = (int32_t)((part + 1) * share - before);
    return piece;
}

#endif
