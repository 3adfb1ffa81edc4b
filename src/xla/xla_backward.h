/*
 * Gradients of attention for XLA, handlers as those of xla_forward.h. Experimental, in the sense of
 * include/flashattn.h.
 *
 * Operands   Those of the forward call, as its attribute `operands` has them; then O, LSE, the
 *            gradient of O and, if there is one, that of LSE.
 * Results    The gradients of q, k and v, of their shapes and types, but with v_columns the last
 *            axis of the third has as many elements; the gradient of sinks, float32, if there are
 *            any; the workspace, uint8 [bytes]: at least the first size of
 *            flash_backward_workspace_size(), or memory that the call allocates is used, which on
 *            a CUDA device is an error. Keys behind the last sequence have no gradients: what their
 *            memory holds stays.
 * Attributes Those of the forward call.
 * Errors     As there.
 */
#ifndef FLASH_XLA_BACKWARD_H
#define FLASH_XLA_BACKWARD_H

#include "flashattn.h"

#include <xla/ffi/api/c_api.h>

/* Computes gradients on the CPU, in the library's threads. */
FLASH_API XLA_FFI_Error *flash_xla_backward_cpu(XLA_FFI_CallFrame *frame);

/* Enqueues gradients on XLA's stream of a CUDA device, as flash_xla_forward_cuda() enqueues
 * attention: it may be recorded in a command buffer, and loads kernels in the stage `initialize`.
 */
FLASH_API XLA_FFI_Error *flash_xla_backward_cuda(XLA_FFI_CallFrame *frame);

#endif
