/*
 * Host and device code agree on this for every SM90_MLA kernel. It is plain C, and constant
 * expressions in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm90_decode_params_t)` of
 * sm90_block_threads() threads with mla_shared_bytes() of dynamic shared memory (drawn in
 * mla/state.cuh). common/decode.h says which block computes what; a block has one K/V head. V is
 * the first columns of K, so that the map and the table of V are unused; but for latent tokens,
 * where the map of V has their bytes up to the scales.
 */
#ifndef FLASH_KERNELS_SM90_MLA_KERNEL_H
#define FLASH_KERNELS_SM90_MLA_KERNEL_H

#include "sm90/decode_kernel.h"

enum {
    MLA_PARTS = 3, /* of the panels of a block of keys, which arrive one after the other */
    MLA_STATE_BYTES = 128
};

/* Returns the bytes in which consumers hand P, factors and weights to each other. */
SM90_CONSTANT int32_t mla_exchange_bytes(const flash_config_t *c) {
    const int32_t of_row =
        c->B_c * sm90_element_bytes(c) + (int32_t)(sizeof(decode_weight_t) + sizeof(float));
    return c->B_r * of_row + SM90_WARPGROUP_THREADS * 2 * (int32_t)sizeof(float);
}

SM90_CONSTANT int32_t mla_shared_bytes(const flash_config_t *c) {
    return sm90_q_bytes(c) + c->n_stages * sm90_k_bytes(c) + mla_exchange_bytes(c) +
           MLA_STATE_BYTES;
}

/* The rules among fields (common/rules.h). */
#define SM90_MLA_FWD_RULES(X, c)                                                                   \
    SM90_WARP_RULES(X, c)                                                                          \
    X(!flash_converts(c) || ((c)->features & FLASH_FEATURE_BIAS) == 0,                             \
      "features has bias, which SM90_MLA kernels that convert K do not add")

#endif
