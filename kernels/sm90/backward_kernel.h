/*
 * Host and device code agree on this for every SM90 kernel of a backward call. It is plain C, and
 * constant expressions in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm90_backward_params_t)`
 * of sm90_backward_threads() threads with sm90_backward_shared_bytes() of dynamic shared memory.
 * The grid has one dimension: sm90_backward_tiles() blocks, no launch where there are none. One op
 * of the two writes dQ, whose tiles are B_r queries of a head, against blocks of B_c keys; the
 * other writes dK and dV, whose tiles are B_c keys of a K/V head, against blocks of B_r queries of
 * each head of its group.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_KERNEL_H
#define FLASH_KERNELS_SM90_BACKWARD_KERNEL_H

#include "common/gradients.h"
#include "sm90/sm90_kernel.h"

enum {
    SM90_BACKWARD_BARRIER_BYTES = 256, /* behind the tiles */
    SM90_BACKWARD_NUMBER_BYTES = 3072, /* of rows that pass by, behind the barriers */
    SM90_BACKWARD_SEEN_BYTES = 1024,   /* behind these, where windows hide rows */
    SM90_BACKWARD_WARPS = 12,          /* four that load, and two consumers */
    SM90_BACKWARD_FP32_BYTES = 4,
    SM90_BACKWARD_MAX_STAGES = 4,
    SM90_BACKWARD_MAX_STEP_ROWS = 96 /* of queries that pass by */
};

/* The host counts tiles for the kernel. */
typedef struct sm90_backward_schedule {
    uint32_t head_tiles;    /* of a head: sm90_backward_tiles_of_head() */
    uint32_t section_heads; /* heads whose tiles are handed out together; at least 1 */
} sm90_backward_schedule_t;

/* Maps are those of sm90_params_t, of boxes of one panel of columns by sm90_backward_rows() or
 * sm90_backward_step() rows: of Q and dO in one op the former and in the other the latter, of K and
 * V the other way round. */
typedef struct sm90_backward_params {
    sm90_tensor_map_t q;
    sm90_tensor_map_t k;
    sm90_tensor_map_t v;
    sm90_tensor_map_t d_o;
    flash_params_t problem;
    flash_gradients_t gradients;
    sm90_entry_tokens_t entry_tokens; /* for kernels with varlen; o: those of dO */
    sm90_backward_schedule_t schedule;
} sm90_backward_params_t;

enum {
    SM90_OP_DQ_OF_DS = 100, /* dQ of kept dS (common/kept_ds.h), beside those of flash_op */
    SM90_DS_ROWS = 128,     /* queries, and keys, of a tile of dS */
    SM90_DS_TILE_BYTES = SM90_DS_ROWS * SM90_DS_ROWS * 2
};

SM90_CONSTANT int32_t sm90_reads_ds(const flash_config_t *c) {
    return c->op == SM90_OP_DQ_OF_DS;
}

SM90_CONSTANT int32_t sm90_writes_dq(const flash_config_t *c) {
    return c->op == FLASH_OP_BACKWARD_DQ || sm90_reads_ds(c);
}

/* Says whether a kernel of dK and dV can keep dS. At d_head 64 that is slower than two kernels: dS
 * takes longer to write and to read than the products that it spares. */
SM90_CONSTANT int32_t sm90_keeps_ds(const flash_config_t *c) {
    return c->op == FLASH_OP_BACKWARD_DKV && c->d_head >= 128 &&
           (c->features & ~FLASH_FEATURE_VARLEN) == FLASH_FEATURE_CAUSAL;
}

/* Returns the configuration of the kernel of dQ of what a row of dK and dV keeps. */
SM90_CONSTANT flash_config_t sm90_dq_of_ds(const flash_config_t *c) {
    flash_config_t of_ds = *c;
    of_ds.op = SM90_OP_DQ_OF_DS;
    of_ds.B_r = c->d_head > 192 ? SM90_DS_ROWS : 2 * SM90_DS_ROWS;
    of_ds.B_c = 64;
    of_ds.n_stages = 4;
    of_ds.overlap = 0;
    return of_ds;
}

/* Counts the queries that a thread stores at a time where dS is kept. */
SM90_CONSTANT int32_t sm90_ds_store_rows(const flash_config_t *c) {
    return c->d_head > 192 ? 16 : 32;
}

/* Counts the panels of dS, of 64 queries each, that a consumer multiplies at a time: two where four
 * consumers would have too few registers for their dQ. */
SM90_CONSTANT int32_t sm90_ds_panels(const flash_config_t *c) {
    return c->d_head > 128 && c->d_head <= 192 ? 2 : 1;
}

/* Counts the warpgroups that multiply. */
SM90_CONSTANT int32_t sm90_backward_consumers(const flash_config_t *c) {
    return sm90_reads_ds(c) ? c->B_r / SM90_WARPGROUP_ROWS / sm90_ds_panels(c) : 2;
}

/* Counts the rows of a tile: queries or keys that stay in shared memory. */
SM90_CONSTANT int32_t sm90_backward_rows(const flash_config_t *c) {
    return sm90_writes_dq(c) ? c->B_r : c->B_c;
}

/* Counts the rows of a step: keys or queries that pass by. */
SM90_CONSTANT int32_t sm90_backward_step(const flash_config_t *c) {
    return sm90_writes_dq(c) ? c->B_c : c->B_r;
}

/* Says whether the two consumers have roles: one computes P and dV, the other dS and dK, both of
 * the same 64 keys. */
SM90_CONSTANT int32_t sm90_backward_has_roles(const flash_config_t *c) {
    return !sm90_writes_dq(c) && c->B_c == SM90_WARPGROUP_ROWS;
}

SM90_CONSTANT int32_t sm90_backward_threads(const flash_config_t *c) {
    return (1 + sm90_backward_consumers(c)) * SM90_WARPGROUP_THREADS;
}

/* Returns the bytes of rows of both tensors that stay, or both that pass by. */
SM90_CONSTANT int32_t sm90_backward_pair_bytes(const flash_config_t *c, int32_t rows) {
    return sm90_tile_bytes(c, rows, c->d_head) + sm90_tile_bytes(c, rows, sm90_d_head_v(c));
}

/* Returns the bytes of the slot through which P goes from one role to the other, in fp32. */
SM90_CONSTANT int32_t sm90_backward_exchange_bytes(const flash_config_t *c) {
    return sm90_backward_has_roles(c) * c->B_c * c->B_r * SM90_BACKWARD_FP32_BYTES;
}

SM90_CONSTANT int32_t sm90_backward_state_bytes(const flash_config_t *c) {
    const int32_t has_window = (c->features & FLASH_FEATURE_WINDOW) != 0;
    return SM90_BACKWARD_BARRIER_BYTES + !sm90_writes_dq(c) * SM90_BACKWARD_NUMBER_BYTES +
           has_window * SM90_BACKWARD_SEEN_BYTES;
}

/* Returns the bytes of a stage where dS passes by with K. */
SM90_CONSTANT int32_t sm90_ds_stage_bytes(const flash_config_t *c) {
    return c->B_r * c->B_c * 2 + sm90_tile_bytes(c, c->B_c, c->d_head);
}

/* Returns the bytes of all tiles. */
SM90_CONSTANT int32_t sm90_backward_tile_bytes(const flash_config_t *c) {
    return sm90_reads_ds(c) ? c->n_stages * sm90_ds_stage_bytes(c)
                            : sm90_backward_pair_bytes(c, sm90_backward_rows(c)) +
                                  c->n_stages * sm90_backward_pair_bytes(c, sm90_backward_step(c));
}

SM90_CONSTANT int32_t sm90_backward_shared_bytes(const flash_config_t *c) {
    return sm90_backward_tile_bytes(c) + sm90_backward_exchange_bytes(c) +
           sm90_backward_state_bytes(c);
}

/* Counts the heads, of all whose tiles the kernel computes, of so many K/V heads. */
SM90_CONSTANT int32_t sm90_backward_heads(const flash_config_t *c, const flash_params_t *p,
                                          int32_t n_heads_kv) {
    return sm90_writes_dq(c) ? n_heads_kv * p->group : n_heads_kv;
}

SM90_CONSTANT int32_t sm90_backward_tiles_of_head(const flash_config_t *c,
                                                  const flash_params_t *p) {
    const int32_t rows = sm90_backward_rows(c);
    const int32_t length = sm90_writes_dq(c) ? p->seqlen_q : p->seqlen_k;
    return length / rows + (length % rows > 0);
}

/* Counts the tiles of a section; with varlen, the most that it can have. */
SM90_CONSTANT int64_t sm90_backward_section_tiles(const flash_config_t *c, const flash_params_t *p,
                                                  const flash_section_t *section) {
    return (int64_t)sm90_backward_tiles_of_head(c, p) *
           sm90_backward_heads(c, p, section->n_heads) * section->n_batch;
}

/* Counts those of the whole call. */
SM90_CONSTANT int64_t sm90_backward_tiles(const flash_config_t *c, const flash_params_t *p) {
    return (int64_t)sm90_backward_tiles_of_head(c, p) * sm90_backward_heads(c, p, p->n_heads_kv) *
           p->batch;
}

/* ---- Rules among fields (common/rules.h) ---- */

#define SM90_BACKWARD_RULES(X, c)                                                                  \
    X((c)->n_warps == SM90_BACKWARD_WARPS, "n_warps is %d: %d, of which 8 multiply", (c)->n_warps, \
      SM90_BACKWARD_WARPS)                                                                         \
    X(sm90_backward_shared_bytes(c) <= SM90_SHARED_BYTES_MAX,                                      \
      "d_head %d, B_r %d, B_c %d and n_stages %d take %d bytes of shared memory: at most %d",      \
      (c)->d_head, (c)->B_r, (c)->B_c, (c)->n_stages, sm90_backward_shared_bytes(c),               \
      SM90_SHARED_BYTES_MAX)

#define SM90_BWD_DQ_RULES(X, c)                                                                    \
    X((c)->B_r == 2 * SM90_WARPGROUP_ROWS, "B_r is %d: %d, 64 for each consumer", (c)->B_r,        \
      2 * SM90_WARPGROUP_ROWS)                                                                     \
    SM90_BACKWARD_RULES(X, c)

#define SM90_BWD_DKV_RULES(X, c)                                                                   \
    X((c)->B_c == 2 * SM90_WARPGROUP_ROWS || (c)->B_c == SM90_WARPGROUP_ROWS,                      \
      "B_c is %d: %d, 64 for each consumer, or 64 for both", (c)->B_c, 2 * SM90_WARPGROUP_ROWS)    \
    X((c)->B_r <= SM90_BACKWARD_MAX_STEP_ROWS, "B_r is %d: at most %d", (c)->B_r,                  \
      SM90_BACKWARD_MAX_STEP_ROWS)                                                                 \
    X(sm90_backward_has_roles(c) || (c)->n_stages >= 3,                                            \
      "n_stages is %d: 3 where a consumer passes over blocks of queries", (c)->n_stages)           \
    X(!(c)->overlap, "overlap is %d: 0 for dK and dV", (c)->overlap)                               \
    SM90_BACKWARD_RULES(X, c)

#endif
