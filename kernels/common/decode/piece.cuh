/*
 * A sequence is cut into pieces. This file has what both ways to cut a batch on the device share.
 *
 * If the host knows the lengths, every sequence is cut into the same number of pieces. Otherwise
 * each block computes the cut from the lengths on the device (cut_lanes.cuh, cut_block.cuh).
 * Sequences longer than a share are cut into pieces of about a share. Pieces are numbered: first
 * those of cut sequences, then whole sequences by class of length, the longest first:
 *
 *     piece number   0  1  2  | 3  4  | 5 ...
 *     sequence       7  7  7    2  2    whole sequences, longest class first
 *
 * Blocks start on multiprocessors in the order of their numbers, so that long pieces start first.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_PIECE_CUH
#define FLASH_KERNELS_COMMON_DECODE_PIECE_CUH

#include "common/decode_cut.h"
#include "common/kv.h"

/* One of `count` pieces of a sequence. count 0: there is none for this block. */
typedef struct decode_piece {
    int32_t batch_index;
    int32_t number;
    int32_t count;
    int32_t split; /* number of the sequence among those that the device cuts */
} decode_piece_t;

/* ---- Lengths in units ---- */

/* Returns a sequence with no more keys than announced, for which the workspace is made. */
template <flash_config_t C>
static __device__ __forceinline__ flash_sequence_t sequence_of(const flash_params_t &p,
                                                               int32_t batch_index) {
    flash_sequence_t s = (C.features & FLASH_FEATURE_PAGED) != 0
                             ? flash_paged_sequence(&p, batch_index)
                             : flash_sequence(&p, batch_index);
    s.len_k = max(min(s.len_k, p.seqlen_k), 0);
    return s;
}

/* Counts the units of a sequence. It is not inlined, because little code should come before the
 * first load, as instructions are loaded from memory too. */
template <flash_config_t C>
static __device__ __noinline__ int32_t count_units(const flash_params_t &p, int32_t b) {
    const flash_sequence_t s = sequence_of<C>(p, b);
    const unit_range_t units = decode_visible_units(&p, &s);
    return units.end - units.begin;
}

/* ---- Shares ---- */

/* Divides the units of a batch and rounds up. Divisions of 64 bits take many instructions. */
static __device__ __forceinline__ int64_t divide_units(int64_t units, int32_t by) {
    return units <= INT32_MAX ? ((uint32_t)units + (uint32_t)by - 1) / (uint32_t)by
                              : (units + by - 1) / by;
}

static __device__ __forceinline__ int32_t first_share(const decode_params_t &params,
                                                      int64_t units) {
    return decode_first_share(&params, divide_units(units, params.busy_pieces),
                              divide_units(units, params.most_pieces));
}

/* The classes of length of whole sequences, the longest first. */
enum { N_LENGTHS = 6 };

/* Returns the class of a whole sequence, 0 ... N_LENGTHS - 1. */
static __device__ __forceinline__ int32_t length_class(int32_t units, int32_t share) {
    return (share - units) * N_LENGTHS / (share + 1);
}

#endif
