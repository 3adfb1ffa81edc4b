/*
 * A call from XLA as the arguments of flash_forward().
 */
#ifndef FLASH_CALL_H
#define FLASH_CALL_H

#include "flashattn.h"
#include "xla/attributes.h"
#include "xla/operands.h"

/* The arguments, and the structs that they point to. It must not be copied once it is filled. */
typedef struct call {
    operands_t operands;
    attributes_t attributes;
    flash_forward_args_t args;
    flash_paging_t paging;
    flash_quant_t quant;
    flash_mask_t mask;
} call_t;

/* Fills a call on the device, workspace included, and checks that the shapes of its buffers fit
 * each other: nothing beyond their ends is read or written. */
flash_status_t call_read(const XLA_FFI_CallFrame *frame, int32_t device, call_t *call);

/* Fills the same of a call whose operands, O and LSE are taken, for a backward call. */
flash_status_t call_read_taken(int32_t device, call_t *call);

/* Checks, of a call on the CPU, what only its data says: that lengths and rows end where the arrays
 * that they are of do. */
flash_status_t call_check_ends(const call_t *call);

#endif
