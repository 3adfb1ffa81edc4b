/*
 * What the decode families share, for the host that launches their kernels and for device code:
 * sequences cut into pieces, the parameters that say how, and the workspace of partial results.
 * Plain C; constant expressions in CUDA C++.
 *
 * The grid has one dimension; a block takes one piece of one sequence: heads_per_block K/V heads
 * over a range of keys, for at most B_r of the rows (queries x query heads) that read them.
 *
 *     block number = (piece * row_tiles + row tile) * head_blocks + head block
 *
 * Blocks of pieces that are not their whole sequence write partial results to the slot of their own
 * number, which a second kernel merges (decode/merge.cuh).
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
    DECODE_CHUNK_BYTES = 16, /* of a copy */
    DECODE_UNIT_KEYS = 64,   /* sequences are cut into pieces between units */
    DECODE_COMBINE_WARPS = 4
};

/* A sequence that was cut, for the kernel that merges its pieces. */
typedef struct decode_split {
    int32_t batch_index;
    int32_t first_piece;
    int32_t pieces;
} decode_split_t;

/* Maximum of a partial row's scores, as they leave Q K^T, and its sum of exponentials. */
typedef struct decode_weight {
    float max;
    float sum;
} decode_weight_t;

typedef struct decode_params {
    flash_params_t attention;
    int32_t heads_per_block; /* K/V heads; divides n_heads_kv and the warps of a block */
    int32_t head_blocks;     /* n_heads_kv / heads_per_block */
    int32_t row_tiles;       /* of B_r rows, of the longest sequence of queries */
    int32_t row_tile;        /* B_r */
    int32_t columns;         /* d_head of the kernel, of a row of partial_o */
    /* Pieces of each sequence; 0: every block cuts the batch by the lengths on the device, into
     * pieces of about one share of its units (decode/piece.cuh): at least least_share, and less
     * than long_share only as far as there are busy_pieces of all sequences; most_pieces run side
     * by side. most_pieces 0: least_share, whatever the batch is. */
    int32_t pieces;
    int32_t busy_pieces;
    int32_t most_pieces;
    int32_t least_share;
    int32_t long_share;
    flash_divider_t by_head_blocks;
    flash_divider_t by_row_tiles;
    flash_divider_t by_pieces;
    flash_divider_t by_group;
    flash_divider_t by_page_size; /* where K and V are in pages */
    /* Partial results, by slot and row of heads_per_block * B_r. */
    float *partial_o;
    decode_weight_t *partial_weights;
    int32_t *n_splits;      /* on the device, where it cuts the batch */
    decode_split_t *splits; /* as many */
} decode_params_t;

DECODE_CONSTANT int32_t decode_block_threads(const flash_config_t *c) {
    return DECODE_WARP_THREADS * c->n_warps;
}

#ifndef __CUDACC__
/* The host's side of the kernels that merge: kernels/sm80/decode_combine.cu has a block for a row,
 * kernels/sm90/decode_combine.cu a warp. Launched, never called. */
void flash_sm80_decode_combine(decode_params_t params);
void flash_sm90_decode_combine(decode_params_t params);
#endif

#endif
