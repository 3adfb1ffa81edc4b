/*
 * Operands and results of a call from XLA: which buffer is which argument of attention.
 */
#ifndef FLASH_OPERANDS_H
#define FLASH_OPERANDS_H

#include "flashattn.h"

#include <xla/ffi/api/c_api.h>

/* The order of operands, and the bits of the attribute `operands`. A new one comes last. */
enum operand {
    OPERAND_Q,
    OPERAND_K,
    OPERAND_V,
    OPERAND_CU_SEQLENS_Q,
    OPERAND_CU_SEQLENS_K,
    OPERAND_PAGE_TABLE,
    OPERAND_V_PAGE_TABLE,
    OPERAND_PAGE_INDPTR,
    OPERAND_PAGE_ROWS,
    OPERAND_K_DESCALE,
    OPERAND_V_DESCALE,
    OPERAND_SINKS,
    OPERAND_SEQUSED_Q,
    OPERAND_SEQUSED_K,
    OPERAND_ALIBI_SLOPES,
    OPERAND_ATTN_MASK,
    OPERAND_MASK_BITS,
    OPERAND_LEFTPAD_K,
    OPERAND_MASK_HEAD_SCALE,
    OPERAND_Q_DESCALE,
    OPERANDS
};

typedef struct operands {
    const XLA_FFI_Buffer *of[OPERANDS]; /* NULL: not given */
    const XLA_FFI_Buffer *o;
    const XLA_FFI_Buffer *lse; /* NULL: not wanted */
    const XLA_FFI_Buffer *workspace;
} operands_t;

/* Takes the buffers of a call, whose operands are those of the bits of `present`, in their order,
 * and checks their types and numbers of axes. */
flash_status_t operands_take(const XLA_FFI_Args *args, const XLA_FFI_Rets *rets, int64_t present,
                             operands_t *operands);

/* A backward call has these buffers besides. */
typedef struct gradients {
    const XLA_FFI_Buffer *d_o;
    const XLA_FFI_Buffer *d_lse; /* NULL: LSE has no gradient */
    const XLA_FFI_Buffer *dq;
    const XLA_FFI_Buffer *dk;
    const XLA_FFI_Buffer *dv;
    const XLA_FFI_Buffer *d_sinks; /* NULL: there are no sinks */
} gradients_t;

/* Does the same for a backward call: its other operands are O, LSE, the gradient of O and perhaps
 * that of LSE, its results the gradients of Q, K, V and of sinks, if there are any, and the
 * workspace. */
flash_status_t operands_take_backward(const XLA_FFI_Args *args, const XLA_FFI_Rets *rets,
                                      int64_t present, operands_t *operands,
                                      gradients_t *gradients);

/* Returns the name of an operand, that of flashattn.jax. */
const char *operand_name(enum operand operand);

/* Returns where the elements of an operand lie; NULL only where it is not given. */
void *operand_data(const operands_t *operands, enum operand operand);

/* Returns the length of an axis; negative numbers count from the end. */
int64_t buffer_length(const XLA_FFI_Buffer *buffer, int axis);

/* Returns FLASH_DTYPE_... of a buffer's elements, or 0. */
int32_t buffer_dtype(const XLA_FFI_Buffer *buffer);

#endif
