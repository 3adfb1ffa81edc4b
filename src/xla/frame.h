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

/* Finds the CUDA device of a call, as flash_forward_args_t has it. Returns XLA's error, or NULL. */
XLA_FFI_Error *frame_device(const XLA_FFI_CallFrame *frame, int32_t *device);

/* Finds XLA's stream of a call on a CUDA device. Returns XLA's error, or NULL. */
XLA_FFI_Error *frame_stream(const XLA_FFI_CallFrame *frame, flash_stream_t *stream);

/* Answers a call to a handler for the CPU: describes the handler, or computes. Returns XLA's error,
 * or NULL. */
XLA_FFI_Error *frame_run_cpu(const XLA_FFI_CallFrame *frame,
                             flash_status_t (*compute)(const XLA_FFI_CallFrame *frame));

typedef XLA_FFI_Error *frame_stage_t(const XLA_FFI_CallFrame *frame, int32_t device);

/* The same for a handler for CUDA devices, which also prepares what it will launch. */
XLA_FFI_Error *frame_run_cuda(const XLA_FFI_CallFrame *frame, frame_stage_t *prepare,
                              frame_stage_t *compute);

#endif
