/*
 * What every SM80_DECODE kernel is, for the host that launches it and for the device code that must
 * agree with it: block and shared-memory size, parameters, and the workspace of partial results.
 * Plain C; constant expressions in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm80_decode_params_t)`.
 * The grid has one dimension; a block takes one piece of one sequence: heads_per_block K/V heads
 * over a range of keys, for at most B_r of the rows (queries x query heads) that read them.
 *
 *     block number = (piece * row_tiles + row tile) * head_blocks + head block
 *
 * Blocks of pieces that are not their whole sequence write partial results to the slot of their own
 * number, which flash_sm80_decode_combine merges (kernels/sm80/decode_combine.cu).
 */
#ifndef FLASH_KERNELS_SM80_DECODE_KERNEL_H
#define FLASH_KERNELS_SM80_DECODE_KERNEL_H

#include "common/divide.h"
#include "common/dtype.h"
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
    DECODE_LINE_BYTES = 128, /* of shared memory */
    DECODE_UNIT_KEYS = 64,   /* sequences are cut into pieces between units */
    DECODE_MOST_HEADS_PER_BLOCK = 4,
    DECODE_STATIC_SHARED_BYTES = 1024, /* at most */
    DECODE_REGISTERS_OF_SM = 65536,
    DECODE_SHARED_BYTES_MAX = 226 * 1024,
    DECODE_SHARED_BYTES_OF_SM = 227 * 1024, /* of compute capability 9.0, less the system's */
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

typedef struct sm80_decode_params {
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
} sm80_decode_params_t;

DECODE_CONSTANT int32_t decode_block_threads(const flash_config_t *c) {
    return DECODE_WARP_THREADS * c->n_warps;
}

/* A slot holds B_c keys of K or of V for one warp; a stage is a slot of each. */
DECODE_CONSTANT int32_t decode_slot_bytes(const flash_config_t *c) {
    return c->B_c * c->d_head * dtype_size(c->dtype);
}

DECODE_CONSTANT int32_t decode_shared_bytes(const flash_config_t *c) {
    return c->n_warps * c->n_stages * 2 * decode_slot_bytes(c);
}

/* Blocks that share a multiprocessor of compute capability 9.0, for the compiler that gives out
 * registers. */
DECODE_CONSTANT int32_t decode_blocks_per_sm(const flash_config_t *c) {
    const int32_t by_memory =
        DECODE_SHARED_BYTES_OF_SM / (decode_shared_bytes(c) + DECODE_STATIC_SHARED_BYTES);
    const int32_t by_registers = DECODE_REGISTERS_OF_SM / (168 * decode_block_threads(c));
    return by_memory < by_registers ? by_memory : by_registers > 0 ? by_registers : 1;
}

#ifndef __CUDACC__
/* The host's side of the kernel in decode_combine.cu; launched, never called. */
void flash_sm80_decode_combine(sm80_decode_params_t params);
#endif

#endif
