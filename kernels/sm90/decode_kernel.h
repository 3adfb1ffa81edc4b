/*
 * Host and device code agree on this for every SM90_DECODE kernel: its parameters. It is plain C.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ sm90_decode_params_t)` of
 * sm90_block_threads() threads with sm90_shared_bytes() of dynamic shared memory, in which tiles
 * lie as in a block of SM90 (sm90/block_state.cuh). common/decode.h says which block computes what;
 * a block has one K/V head.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_KERNEL_H
#define FLASH_KERNELS_SM90_DECODE_KERNEL_H

#include "common/decode.h"
#include "sm90/sm90_kernel.h"

/* Boxes of K and V are of one panel of columns by B_c rows, or in pages by paging.box_keys rows. */
typedef struct sm90_decode_params {
    decode_params_t cut;
    sm90_tensor_map_t k;
    sm90_tensor_map_t v;
    sm90_entry_tokens_t entry_tokens; /* of k and v */
    sm90_paging_t paging;
} sm90_decode_params_t;

/* Says whether maxima of partial results are in the exponent of e: where rows have units of their
 * own. */
SM90_CONSTANT int32_t sm90_decode_leaves_natural_maxima(const flash_config_t *c) {
    return c->arch == FLASH_ARCH_SM90_DECODE && flash_has_scales(c);
}

/* The rules among fields (common/rules.h). */
#define SM90_DECODE_FWD_RULES(X, c)                                                                \
    SM90_WARP_RULES(X, c)                                                                          \
    SM90_CONVERTER_RULES(X, c)                                                                     \
    X(!flash_multiplies_e4m3(c) || ((c)->B_c == 128 && (c)->d_head <= 128),                        \
      "B_c is %d and d_head %d: where products are of e4m3, B_c is 128, and d_head 64 or 128",     \
      (c)->B_c, (c)->d_head)                                                                       \
    X(!flash_multiplies_e4m3(c) || ((c)->features & FLASH_FEATURE_BIAS) == 0,                      \
      "operand_dtype is e4m3: no row with bias has it")                                            \
    X(!flash_converts(c) || ((c)->features & FLASH_FEATURE_BIAS) == 0,                             \
      "features has bias, which SM90_DECODE kernels that convert K and V do not add")              \
    SM90_CONSUMER_RULES(X, c)

#endif
