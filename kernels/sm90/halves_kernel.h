/*
 * Host and device code agree on this for every SM90_MLA and SM90_WIDE kernel. It is plain C, and
 * constant expressions in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm90_decode_params_t)` of
 * sm90_block_threads() threads with halves_shared_bytes() of dynamic shared memory (drawn in
 * halves/state.cuh). common/decode.h says which block computes what; a block has one K/V head. In
 * SM90_MLA V is the first columns of K, so that the map and the table of V are unused; but for
 * latent tokens, where the map of V has their bytes up to the scales.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_KERNEL_H
#define FLASH_KERNELS_SM90_HALVES_KERNEL_H

#include "sm90/decode_kernel.h"

enum {
    HALVES_STATE_BYTES = 256, /* halves_state_t, behind the exchange (halves/state.cuh) */
    HALVES_TILES_BYTES = 256  /* halves_tiles_t, behind that, in kernels that walk */
};

/* Says whether V is the first columns of K. */
SM90_CONSTANT int32_t halves_v_in_k(const flash_config_t *c) {
    return c->arch == FLASH_ARCH_SM90_MLA;
}

/* Says whether blocks walk parts of the batch's keys (common/decode_parts.h). */
SM90_CONSTANT int32_t halves_walks(const flash_config_t *c) {
    return halves_v_in_k(c) && c->persistent != 0;
}

/* Returns the bytes of what blocks that walk know of their tiles. */
SM90_CONSTANT int32_t halves_tiles_bytes(const flash_config_t *c) {
    return halves_walks(c) ? HALVES_TILES_BYTES : 0;
}

/* Counts the parts of the panels of a block of K, which arrive one after the other. */
SM90_CONSTANT int32_t halves_k_parts(const flash_config_t *c) {
    return halves_v_in_k(c) ? 3 : 4;
}

/* Returns the bytes of a block of keys: of K, and of V unless it lies in K. */
SM90_CONSTANT int32_t halves_stage_bytes(const flash_config_t *c) {
    return sm90_k_bytes(c) + (halves_v_in_k(c) ? 0 : sm90_v_bytes(c));
}

/* Returns the bytes in which consumers hand P, factors and weights to each other. */
SM90_CONSTANT int32_t halves_exchange_bytes(const flash_config_t *c) {
    const int32_t of_row =
        c->B_c * sm90_element_bytes(c) + (int32_t)(sizeof(decode_weight_t) + sizeof(float));
    return c->B_r * of_row + SM90_WARPGROUP_THREADS * 2 * (int32_t)sizeof(float);
}

SM90_CONSTANT int32_t halves_shared_bytes(const flash_config_t *c) {
    return sm90_q_bytes(c) + c->n_stages * halves_stage_bytes(c) + halves_exchange_bytes(c) +
           HALVES_STATE_BYTES + halves_tiles_bytes(c);
}

/* The rules among fields (common/rules.h). */
#define SM90_MLA_FWD_RULES(X, c)                                                                   \
    SM90_WARP_RULES(X, c)                                                                          \
    X(!flash_converts(c) || ((c)->features & FLASH_FEATURE_BIAS) == 0,                             \
      "features has bias, which SM90_MLA kernels that convert K do not add")                       \
    X(!(c)->persistent || ((c)->features & FLASH_FEATURE_BIAS) == 0,                               \
      "features has bias, which persistent SM90_MLA kernels do not add")

#define SM90_WIDE_FWD_RULES(X, c)                                                                  \
    SM90_WARP_RULES(X, c)                                                                          \
    X(!flash_converts(c) || ((c)->features & FLASH_FEATURE_BIAS) == 0,                             \
      "features has bias, which SM90_WIDE kernels that convert K and V do not add")

#endif
