/*
 * Sequences are cut into pieces by this arithmetic. It is for the device code of decode kernels,
 * and for tests of the host's bounds on the result.
 *
 * Keys are counted in units. A sequence of more units than a share is cut into pieces of whole
 * units, as few and as equal as possible with at most a share each; or into `most` pieces, if a
 * share each would be more.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_CUT_H
#define FLASH_KERNELS_COMMON_DECODE_CUT_H

#include "common/decode.h"
#include "common/sequence.h"

enum {
    DECODE_N_SHARES = 9,                                 /* from the first to twice as much */
    DECODE_MOST_UNITS = INT32_MAX / DECODE_UNIT_KEYS + 1 /* of a sequence */
};

typedef struct unit_range {
    int32_t begin;
    int32_t end;
} unit_range_t;

/* Returns the units with keys that some query of the sequence sees. Both ends of the keys that a
 * query sees move right from query to query. */
FLASH_HOST_DEVICE static inline unit_range_t decode_visible_units(const flash_params_t *p,
                                                                  const flash_sequence_t *s) {
    unit_range_t units = {0, 0};
    if (s->len_q <= 0)
        return units;
    const int64_t end = flash_visible_keys(p, s, s->len_q - 1).end;
    units.begin = flash_visible_keys(p, s, 0).begin / DECODE_UNIT_KEYS;
    units.end = (int32_t)((end + DECODE_UNIT_KEYS - 1) / DECODE_UNIT_KEYS);
    return units;
}

/* How sequences are cut. */
typedef struct decode_cut {
    int32_t share;
    int32_t most; /* pieces of a sequence */
} decode_cut_t;

/* Counts the pieces of a sequence; 1 if it is not cut. */
FLASH_HOST_DEVICE static inline int32_t decode_count_pieces(int32_t units, decode_cut_t cut) {
    const int32_t pieces = units > cut.share ? (units + cut.share - 1) / cut.share : 1;
    return pieces < cut.most ? pieces : cut.most;
}

/* Returns the cut of a batch into pieces of this share, however many they are. */
FLASH_HOST_DEVICE static inline decode_cut_t decode_cut_by(int32_t share) {
    const decode_cut_t cut = {share, INT32_MAX};
    return cut;
}

/* Returns the cut in which a sequence's own length alone decides. */
FLASH_HOST_DEVICE static inline decode_cut_t decode_own_cut(const decode_params_t *params) {
    const decode_cut_t cut = {params->least_share, params->own_pieces};
    return cut;
}

/* Returns the first share for a batch: one that gives as many pieces as blocks run side by side,
 * but pieces shorter than long_share only until every multiprocessor has a block. one_each and
 * side_by_side: the batch's units / busy_pieces and / most_pieces, rounded up. */
FLASH_HOST_DEVICE static inline int32_t decode_first_share(const decode_params_t *params,
                                                           int64_t one_each, int64_t side_by_side) {
    int64_t share = one_each > params->least_share ? one_each : params->least_share;
    share = share < params->long_share ? share : params->long_share;
    share = share > side_by_side ? share : side_by_side;
    return share < DECODE_MOST_UNITS ? (int32_t)share : DECODE_MOST_UNITS;
}

/* Returns the i-th candidate for the size of a share. */
FLASH_HOST_DEVICE static inline int32_t decode_nth_share(int32_t first, int32_t i) {
    const int32_t steps = DECODE_N_SHARES - 1;
    return first + (first * i + steps - 1) / steps;
}

#endif
