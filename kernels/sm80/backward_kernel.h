/*
 * Host and device code agree on this for SM80 kernels of gradients: block and shared memory sizes,
 * and the number of blocks. It is plain C, and constant expressions in CUDA C++.
 *
 * A block computes a tile of rows that stay: B_r queries, of which it computes dQ, or B_c keys, of
 * which it computes dK and dV. The others go by, in blocks of B_c keys or B_r queries. A kernel is
 * an `extern "C" __global__ void name(const __grid_constant__ flash_backward_params_t params)`. The
 * grid has one dimension: sm80_backward_section_blocks() blocks of sm80_backward_threads() threads
 * with sm80_backward_shared_bytes() of dynamic shared memory. Without blocks there is no launch.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_KERNEL_H
#define FLASH_KERNELS_SM80_BACKWARD_KERNEL_H

#include "common/gradients.h"
#include "common/operand.h"
#include "common/rules.h"
#include "flashattn.h"

#include <stdint.h>

#ifdef __CUDACC__
#define SM80_BACKWARD_CONSTANT static constexpr __host__ __device__ inline
#else
#define SM80_BACKWARD_CONSTANT static inline
#endif

enum {
    SM80_BACKWARD_WARP_THREADS = 32,
    SM80_BACKWARD_MMA_ROWS = 16,
    SM80_BACKWARD_ELEMENT_BYTES = 2,
    /* A multiprocessor of compute capability 8.0 has the first, and the system takes the second of
     * each block. */
    SM80_BACKWARD_SHARED_OF_SM = 164 * 1024,
    SM80_BACKWARD_SHARED_RESERVED = 1024,
    SM80_BACKWARD_STATIC_SHARED_BYTES = 384, /* per block, at most: backward/mainloop.cuh */
    SM80_BACKWARD_MOST_WARPS = 8,            /* of a multiprocessor, with 255 registers */
    SM80_BACKWARD_MOST_STEP = 128,           /* rows of a block that goes by */
    /* Columns of a gradient that a warp has: of 32 rows of dQ, or of 32 rows of dK and dV, they
     * take 128 registers. */
    SM80_BACKWARD_MOST_COLUMNS = 128,
    SM80_BACKWARD_FEW_COLUMNS = 64,
    /* dS is kept in tiles of as many queries and keys, for a kernel of so many queries. */
    SM80_DS_TILE_ROWS = 64,
    SM80_DQ_OF_DS_ROWS = 128,
    SM80_DQ_OF_DS_STAGES = 2
};

SM80_BACKWARD_CONSTANT int32_t sm80_backward_has_keys(const flash_config_t *c) {
    return c->op == FLASH_OP_BACKWARD_DKV;
}

/* Returns the rows of a tile, which stay. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_rows(const flash_config_t *c) {
    return sm80_backward_has_keys(c) ? c->B_c : c->B_r;
}

/* Returns the rows of a block that goes by. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_step(const flash_config_t *c) {
    return sm80_backward_has_keys(c) ? c->B_r : c->B_c;
}

/* Counts the warps that share rows: each has some of the columns of their gradients, and computes
 * P and dS of as many parts of the block that goes by. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_sharing_warps(const flash_config_t *c) {
    const int32_t few = (c->d_head + SM80_BACKWARD_MOST_COLUMNS - 1) / SM80_BACKWARD_MOST_COLUMNS;
    const int32_t many =
        sm80_backward_has_keys(c) && c->d_head > SM80_BACKWARD_FEW_COLUMNS ? 2 * few : few;
    return sm80_backward_step(c) < many * SM80_BACKWARD_MMA_ROWS ? few : many;
}

SM80_BACKWARD_CONSTANT int32_t sm80_backward_warp_rows(const flash_config_t *c) {
    return sm80_backward_rows(c) * sm80_backward_sharing_warps(c) / c->n_warps;
}

SM80_BACKWARD_CONSTANT int32_t sm80_backward_threads(const flash_config_t *c) {
    return SM80_BACKWARD_WARP_THREADS * c->n_warps;
}

/* Returns the bytes by which warps that share rows hand each other P and dS. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_handed_bytes(const flash_config_t *c) {
    const int32_t bytes =
        sm80_backward_rows(c) * sm80_backward_step(c) * SM80_BACKWARD_ELEMENT_BYTES;
    return sm80_backward_sharing_warps(c) == 1 ? 0 : sm80_backward_has_keys(c) ? 2 * bytes : bytes;
}

/* Returns the bytes of D and the logarithms of sums of a block of queries that goes by. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_sums_bytes(const flash_config_t *c) {
    return sm80_backward_has_keys(c) ? 2 * sm80_backward_step(c) * (int32_t)sizeof(float) : 0;
}

/* Dynamic shared memory holds Q and dO, or K and V, of the tile, then stages of the other two, of
 * sums of rows, and P and dS that are handed over. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_shared_bytes(const flash_config_t *c) {
    const int32_t row_bytes = c->d_head * SM80_BACKWARD_ELEMENT_BYTES;
    const int32_t stage = 2 * sm80_backward_step(c) * row_bytes + sm80_backward_sums_bytes(c);
    return 2 * sm80_backward_rows(c) * row_bytes + c->n_stages * stage +
           sm80_backward_handed_bytes(c);
}

/* Counts the blocks that share a multiprocessor. The compiler assigns registers accordingly. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_blocks_per_sm(const flash_config_t *c) {
    const int32_t bytes = sm80_backward_shared_bytes(c) + SM80_BACKWARD_SHARED_RESERVED;
    return c->n_warps == 8 || 2 * bytes > SM80_BACKWARD_SHARED_OF_SM ? 1 : 2;
}

/* Counts the tiles of each sequence and head, of K and V if the rows are keys. */
SM80_BACKWARD_CONSTANT int64_t sm80_backward_tiles(const flash_config_t *c,
                                                   const flash_params_t *p) {
    const int64_t rows = sm80_backward_rows(c);
    return ((sm80_backward_has_keys(c) ? p->seqlen_k : p->seqlen_q) + rows - 1) / rows;
}

/* Counts those of a whole call, the most that a launch has. */
SM80_BACKWARD_CONSTANT int64_t sm80_backward_blocks(const flash_config_t *c,
                                                    const flash_params_t *p) {
    return sm80_backward_tiles(c, p) * (sm80_backward_has_keys(c) ? p->n_heads_kv : p->n_heads) *
           p->batch;
}

/* Counts those of a section of it. */
SM80_BACKWARD_CONSTANT int64_t sm80_backward_section_blocks(const flash_config_t *c,
                                                            const flash_params_t *p,
                                                            const flash_section_t *section) {
    const int64_t heads = (int64_t)section->n_heads * (sm80_backward_has_keys(c) ? 1 : p->group);
    return sm80_backward_tiles(c, p) * heads * section->n_batch;
}

/* ---- Kernels of dQ of dS ---- */

/* Says whether a kernel of dK and dV can keep dS, and has a second kernel beside it. With few
 * columns writing and reading dS takes as long as the two products that it saves, but not where the
 * bits of dropout would be computed a second time too. */
SM80_BACKWARD_CONSTANT int32_t sm80_backward_keeps_ds(const flash_config_t *c) {
    return sm80_backward_has_keys(c) &&
           (c->d_head > SM80_BACKWARD_FEW_COLUMNS || (c->features & FLASH_FEATURE_DROPOUT) != 0);
}

/* Returns the configuration of that second kernel, which is no row of the table: that of a kernel
 * of dQ with its own tile. A warp has 32 queries, and 128 columns of dQ. */
SM80_BACKWARD_CONSTANT flash_config_t sm80_dq_of_ds_config(const flash_config_t *c) {
    flash_config_t of_ds = *c;
    of_ds.op = FLASH_OP_BACKWARD_DQ;
    of_ds.B_r = SM80_DQ_OF_DS_ROWS;
    of_ds.B_c = SM80_DS_TILE_ROWS;
    of_ds.n_warps = c->d_head > SM80_BACKWARD_MOST_COLUMNS ? 8 : 4;
    of_ds.n_stages = SM80_DQ_OF_DS_STAGES;
    return of_ds;
}

/* These take that configuration. */
SM80_BACKWARD_CONSTANT int32_t sm80_dq_of_ds_stage_bytes(const flash_config_t *of_ds) {
    return of_ds->B_c * (of_ds->d_head + of_ds->B_r) * SM80_BACKWARD_ELEMENT_BYTES;
}

SM80_BACKWARD_CONSTANT int32_t sm80_dq_of_ds_shared_bytes(const flash_config_t *of_ds) {
    return of_ds->n_stages * sm80_dq_of_ds_stage_bytes(of_ds);
}

SM80_BACKWARD_CONSTANT int32_t sm80_dq_of_ds_blocks_per_sm(const flash_config_t *of_ds) {
    return SM80_BACKWARD_MOST_WARPS / of_ds->n_warps;
}

/* ---- Rules among fields (common/rules.h) ---- */

#define SM80_BACKWARD_RULES(X, c)                                                                  \
    X(sm80_backward_rows(c) * sm80_backward_sharing_warps(c) %                                     \
              (SM80_BACKWARD_MMA_ROWS * (c)->n_warps) ==                                           \
          0,                                                                                       \
      "n_warps is %d: %d rows do not divide into rows of %d for each", (c)->n_warps,               \
      sm80_backward_rows(c), SM80_BACKWARD_MMA_ROWS)                                               \
    X(sm80_backward_step(c) <= SM80_BACKWARD_MOST_STEP,                                            \
      "B_r is %d and B_c %d: more than %d go by", (c)->B_r, (c)->B_c, SM80_BACKWARD_MOST_STEP)     \
    X(sm80_backward_step(c) >= 4 * (c)->n_warps,                                                   \
      "n_warps is %d: more than copy %d rows at a time", (c)->n_warps, sm80_backward_step(c))

#define SM80_BWD_DQ_RULES(X, c)  SM80_BACKWARD_RULES(X, c)
#define SM80_BWD_DKV_RULES(X, c) SM80_BACKWARD_RULES(X, c)

#endif
