/*
 * A backward call on a CUDA device begins with kernels that compute what it needs of each row of Q,
 * add up the gradients of sinks, and clear gradients of tokens that are not in use. Host and device
 * code agree here on their grids.
 */
#ifndef FLASH_KERNELS_COMMON_ROW_SUMS_H
#define FLASH_KERNELS_COMMON_ROW_SUMS_H

#include "common/gradients.h"

enum {
    ROW_SUMS_THREADS = 256,
    ROW_SUMS_LANES = 8, /* threads of a row */
    ROW_SUMS_ROWS = ROW_SUMS_THREADS / ROW_SUMS_LANES,
    CLEAR_ROWS_THREADS = 128,
};

typedef struct row_sums_params {
    flash_backward_params_t call;
    /* [n_heads, n_places]: parts of the gradients of sinks. NULL: they are not wanted. */
    float *sink_sums;
    int64_t n_places;
    int32_t d_o_dtype;
    int32_t is_aligned; /* 1: rows of O and dO consist of whole, 16-byte aligned chunks */
} row_sums_params_t;

/* Counts the blocks of rows of each sequence and head. */
FLASH_HOST_DEVICE static inline int64_t row_sums_blocks(int32_t seqlen_q) {
    return ((int64_t)seqlen_q + ROW_SUMS_ROWS - 1) / ROW_SUMS_ROWS;
}

/* Counts the places of parts of a head. A sequence whose rows begin at row r of n_rows has those
 * from r / ROW_SUMS_ROWS + its number on, so that places follow tokens, not the longest sequence.
 */
static inline int64_t row_sums_places(int64_t n_rows, int32_t batch) {
    return n_rows / ROW_SUMS_ROWS + batch;
}

#ifndef __CUDACC__
/* The kernels of row_sums.cu are declared for the host, which launches them and never calls them.
 * Blocks of the first take batch * n_heads * row_sums_blocks() items in turn, those of the third
 * batch * (the longest place) tokens. The second has a block for each head. */
void flash_row_sums(row_sums_params_t params);
void flash_sink_sums(row_sums_params_t params);
void flash_clear_rows(flash_backward_params_t params);
#endif

#endif
