/*
 * A backward call from XLA as the arguments of flash_backward().
 */
#ifndef FLASH_BACKWARD_CALL_H
#define FLASH_BACKWARD_CALL_H

#include "flashattn.h"
#include "xla/call.h"

/* It must not be copied once it is filled. */
typedef struct backward_call {
    call_t forward;
    gradients_t gradients;
    flash_backward_args_t args;
} backward_call_t;

/* Fills a call on the device, workspace included, and checks shapes as call_read() does. */
flash_status_t backward_call_read(const XLA_FFI_CallFrame *frame, int32_t device,
                                  backward_call_t *call);

#endif
