/*
 * All decode families share this, in host and device code: sequences cut into pieces, the
 * parameters that say how, and the workspace of partial results. It is plain C, and constant
 * expressions in CUDA C++.
 *
 * The grid has one dimension. A block takes one piece of one sequence: heads_per_block K/V heads
 * over a range of keys, for at most B_r of the rows (queries x query heads) that read them.
 *
 *     block number = (piece * row_tiles + row tile) * head_blocks + head block
 *
 * Some kernels take tiles in another order (decode/block.cuh). A block whose piece is not its whole
 * sequence writes partial results to the slot of this number. A second kernel merges them
 * (decode/merge.cuh).
 *
 * Where the batch is divided into parts, a block takes all pieces of its part, one after the other,
 * and the number of a part stands for that of the piece (decode_parts.h).
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_H
#define FLASH_KERNELS_COMMON_DECODE_H

#include "common/divide.h"
#include "common/params.h"
#include "flashattn.h"

#include <stdint.h>

#ifdef __CUDACC__
#define DECODE_CONSTANT static constexpr __host__ __device__ inline
#else
#define DECODE_CONSTANT static inline
#endif

enum {
    DECODE_WARP_THREADS = 32,
    DECODE_CHUNK_BYTES = 16, /* of one copy */
    DECODE_UNIT_KEYS = 64,   /* sequences are cut into pieces between units */
    DECODE_COMBINE_WARPS = 4,
    DECODE_MERGE_COLUMNS = 4 * DECODE_WARP_THREADS
};

/* A sequence that was cut, for the kernel that merges its pieces. */
typedef struct decode_split {
    int32_t batch_index;
    int32_t first_piece;
    int32_t pieces;
} decode_split_t;

/* The maximum of a partial row's scores, as Q K^T leaves them, and its sum of exponentials. */
typedef struct decode_weight {
    float max;
    float sum;
} decode_weight_t;

typedef struct decode_params {
    flash_params_t attention;
    int32_t heads_per_block; /* K/V heads; divides n_heads_kv and the warps of a block */
    int32_t head_blocks;     /* n_heads_kv / heads_per_block */
    int32_t row_tiles;       /* tiles of B_r rows in the longest sequence of queries */
    int32_t row_tile;        /* B_r */
    int32_t columns;         /* d_head of the kernel, and of a row of partial_o */
    /* Pieces of each sequence. If it is 0, every block cuts the batch by the lengths on
     * the device, into pieces of about a share (decode/piece.cuh). A share is at least least_share,
     * and is below long_share only as long as there are no more than busy_pieces in all;
     * most_pieces run side by side. If most_pieces is 0, the share is least_share, whatever the
     * batch is, and a sequence has at most own_pieces. */
    int32_t pieces;
    int32_t busy_pieces;
    int32_t most_pieces;
    int32_t own_pieces;
    int32_t least_share;
    int32_t long_share;
    int32_t row_parts;      /* of DECODE_MERGE_COLUMNS columns, which are merged by themselves */
    uint32_t merge_parts;   /* of the rows of all heads of the sequences that may be cut */
    int32_t natural_scores; /* 1: maxima of partial results are in the exponent of e */
    int32_t natural_bias; /* 1: the unit of scores with a bias is that of common/natural_bias.cuh */
    flash_divider_t by_head_blocks;
    flash_divider_t by_row_tiles;
    flash_divider_t by_pieces;
    flash_divider_t by_group;
    flash_divider_t by_page_size; /* if K and V are in pages */
    /* If it is not 0, all keys of the batch are divided into this many equal parts, each walked by
     * a block (decode_parts.h), and `pieces` is 0. */
    int32_t parts;
    /* Partial results are ordered by slot, then by row of heads_per_block * B_r. */
    float *partial_o;
    decode_weight_t *partial_weights;
    int32_t *n_splits;      /* the sequences that the device has cut: their number */
    decode_split_t *splits; /* [*n_splits] */
} decode_params_t;

DECODE_CONSTANT int32_t decode_block_threads(const flash_config_t *c) {
    return DECODE_WARP_THREADS * c->n_warps;
}

#ifndef __CUDACC__
/* The host launches the merging kernels and never calls them. That of sm80/decode_combine.cu merges
 * a part of a row by a block, that of sm90/decode_combine.cu by a warp. */
void flash_sm80_decode_combine(decode_params_t params);
void flash_sm90_decode_combine(decode_params_t params);
#endif

#endif
