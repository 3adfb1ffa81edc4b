/*
 * Attributes of a call from XLA: the numbers of flash_forward_args_t that no operand's shape says.
 */
#ifndef FLASH_ATTRIBUTES_H
#define FLASH_ATTRIBUTES_H

#include "flashattn.h"

#include <xla/ffi/api/c_api.h>

/* These attributes are what flash_forward_args_t and flash_mask_t have under the same names, and
 * what no element of XLA's says of K and V; src/xla/xla_forward.h lists them. One that is not given
 * is 0. */
typedef struct attributes {
    int64_t attention_chunk;
    int64_t diagonal_offset;
    int64_t flags;
    int64_t k_dtype;
    int64_t mask_flags;
    int64_t mask_keys;
    int64_t n_multiprocessors;
    int64_t operands;
    int64_t seqlen_k;
    int64_t seqlen_q;
    float softcap;
    float softmax_scale;
    int64_t v_columns;
    int64_t v_dtype;
    int64_t window_left;
    int64_t window_right;
} attributes_t;

flash_status_t attributes_read(const XLA_FFI_Attrs *given, attributes_t *attributes);

#endif
