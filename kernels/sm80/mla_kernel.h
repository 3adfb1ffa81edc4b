/*
 * Host and device code agree on this for every SM80_MLA and SM80_WIDE kernel. It is plain C, and
 * constant expressions in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm80_decode_params_t)` of
 * decode_block_threads() threads with sm80_mla_shared_bytes() of dynamic shared memory (drawn in
 * mla/derive.cuh). common/decode.h says which block computes what; a block has one K/V head. In
 * SM80_MLA V is the first columns of K, so that the address and the pages of V are unused.
 */
#ifndef FLASH_KERNELS_SM80_MLA_KERNEL_H
#define FLASH_KERNELS_SM80_MLA_KERNEL_H

#include "sm80/decode_kernel.h"

enum {
    SM80_MLA_ROW_GROUP = 16,        /* rows of a warp's scores */
    SM80_MLA_OPERAND_BYTES = 2,     /* of an element that is multiplied */
    SM80_MLA_CONVERTED_STAGES = 2,  /* of keys that are converted before they are multiplied */
    SM80_WIDE_CONVERTED_STAGES = 1, /* the same of K and of V, where they are not the same */
    SM80_MLA_ROW_BYTES = 20,        /* of what a block keeps of each row, beside sums */
    SM80_MLA_BIAS_BYTES = 24,       /* of a row's bias, in kernels with bias */
    SM80_MLA_TOKEN_BYTES = 640,     /* of a latent token, but for its scales */
    SM80_MLA_ROWS_OF_ONE_BLOCK = 64 /* with which a block takes a multiprocessor's registers */
};

/* Counts the warps that share the columns of a row group's scores. */
DECODE_CONSTANT int32_t sm80_mla_sharing_warps(const flash_config_t *c) {
    return c->n_warps * SM80_MLA_ROW_GROUP / c->B_r;
}

/* Says whether V is the first columns of K. */
DECODE_CONSTANT int32_t sm80_mla_v_in_k(const flash_config_t *c) {
    return c->arch == FLASH_ARCH_SM80_MLA;
}

/* Returns the columns of V and O. */
DECODE_CONSTANT int32_t sm80_mla_d_head_v(const flash_config_t *c) {
    return c->d_head_v > 0 ? c->d_head_v : c->d_head;
}

/* Counts the tensors of keys that are loaded, each into stages of its own. */
DECODE_CONSTANT int32_t sm80_mla_tensors(const flash_config_t *c) {
    return sm80_mla_v_in_k(c) ? 1 : 2;
}

/* Counts the stages from which a tensor is multiplied. Keys arrive there, or are converted into
 * them. */
DECODE_CONSTANT int32_t sm80_mla_stages(const flash_config_t *c) {
    return !flash_converts(c)   ? c->n_stages
           : sm80_mla_v_in_k(c) ? (int32_t)SM80_MLA_CONVERTED_STAGES
                                : (int32_t)SM80_WIDE_CONVERTED_STAGES;
}

DECODE_CONSTANT int32_t sm80_mla_stage_bytes(const flash_config_t *c) {
    return c->B_c * c->d_head * SM80_MLA_OPERAND_BYTES;
}

/* Returns the bytes in which the columns of B_c keys of a tensor arrive that are to be converted.
 */
DECODE_CONSTANT int32_t sm80_mla_landed_columns_bytes(const flash_config_t *c) {
    return c->B_c *
           (flash_is_latent(c) ? (int32_t)SM80_MLA_TOKEN_BYTES : c->d_head * dtype_size(c->dtype));
}

/* Returns the bytes of these keys' scales: each warp has those that it multiplies by. */
DECODE_CONSTANT int32_t sm80_mla_landed_scales_bytes(const flash_config_t *c) {
    return flash_is_latent(c) ? c->n_warps * c->B_c * (int32_t)sizeof(float) : 0;
}

/* Returns the bytes in which B_c keys of a tensor arrive that are to be converted. */
DECODE_CONSTANT int32_t sm80_mla_landing_bytes(const flash_config_t *c) {
    return flash_converts(c) ? sm80_mla_landed_columns_bytes(c) + sm80_mla_landed_scales_bytes(c)
                             : 0;
}

/* Returns the bytes of all keys: stages, and landings behind them. */
DECODE_CONSTANT int32_t sm80_mla_key_bytes(const flash_config_t *c) {
    return sm80_mla_tensors(c) *
           (sm80_mla_stages(c) * sm80_mla_stage_bytes(c) + c->n_stages * sm80_mla_landing_bytes(c));
}

/* Returns the bytes in which warps exchange scores, P, and what belongs to rows. */
DECODE_CONSTANT int32_t sm80_mla_exchange_bytes(const flash_config_t *c) {
    const int32_t scores_and_sums =
        sm80_mla_sharing_warps(c) * (c->B_c + 1) * (int32_t)sizeof(float);
    const int32_t p = 2 * c->B_c * SM80_MLA_OPERAND_BYTES; /* of two steps */
    const int32_t bias = (c->features & FLASH_FEATURE_BIAS) != 0 ? SM80_MLA_BIAS_BYTES : 0;
    return c->B_r * (scores_and_sums + p + SM80_MLA_ROW_BYTES + bias);
}

DECODE_CONSTANT int32_t sm80_mla_shared_bytes(const flash_config_t *c) {
    return sm80_mla_key_bytes(c) + sm80_mla_exchange_bytes(c);
}

/* Counts the blocks that share the registers of a multiprocessor. */
DECODE_CONSTANT int32_t sm80_mla_blocks_per_sm(const flash_config_t *c) {
    return c->B_r < SM80_MLA_ROWS_OF_ONE_BLOCK ? 2 : 1;
}

/* Says whether a kernel hides keys in holes of a page table: rows of SM80_MLA with bias do. */
DECODE_CONSTANT int32_t sm80_mla_hides_holes(const flash_config_t *c) {
    const int32_t needed = FLASH_FEATURE_PAGED | FLASH_FEATURE_BIAS;
    return c->arch == FLASH_ARCH_SM80_MLA && (c->features & needed) == needed;
}

/* The rules among fields (common/rules.h). */
#define SM80_MLA_RULES(X, c)                                                                       \
    X((c)->n_warps *SM80_MLA_ROW_GROUP == 2 * (c)->B_r ||                                          \
          (c)->n_warps * SM80_MLA_ROW_GROUP == 4 * (c)->B_r,                                       \
      "n_warps is %d: two or four for each %d rows of B_r, which is %d", (c)->n_warps,             \
      SM80_MLA_ROW_GROUP, (c)->B_r)                                                                \
    X(sm80_mla_shared_bytes(c) <= DECODE_SHARED_BYTES_MAX,                                         \
      "B_r %d, B_c %d, n_warps %d and n_stages %d take %d bytes of shared memory: at most %d",     \
      (c)->B_r, (c)->B_c, (c)->n_warps, (c)->n_stages, sm80_mla_shared_bytes(c),                   \
      DECODE_SHARED_BYTES_MAX)

#define SM80_MLA_FWD_RULES(X, c)  SM80_MLA_RULES(X, c)
#define SM80_WIDE_FWD_RULES(X, c) SM80_MLA_RULES(X, c)

#endif
