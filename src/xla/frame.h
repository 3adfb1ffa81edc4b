/*
 * What handlers of XLA's calls have in common.
 */
#ifndef FLASH_FRAME_H
#define FLASH_FRAME_H

#include "flashattn.h"

#include <xla/ffi/api/c_api.h>

/* Returns the error of a call with that status, with the text of its message; NULL: it has none. */
XLA_FFI_Error *frame_error(const XLA_FFI_CallFrame *frame, flash_status_t status);

/* Returns where XLA wants to have a handler described instead of called; NULL: it does not. */
XLA_FFI_Metadata *frame_wants_metadata(const XLA_FFI_CallFrame *frame);

XLA_FFI_Error *frame_describe(XLA_FFI_Metadata *metadata, XLA_FFI_Handler_Traits traits);

#endif
