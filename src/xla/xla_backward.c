/*
 * This file has the exported handlers of gradients. What a call says is read in backward_call.c.
 */
#include "xla/xla_backward.h"

#include "core/status.h"
#include "xla/backward_call.h"
#include "xla/frame.h"

#include <stdlib.h>

/* ---- The CPU ---- */

static flash_status_t run_in(backward_call_t *call, void *memory, uint64_t size) {
    call->args.workspace = memory;
    call->args.workspace_size = size;
    const flash_status_t status = flash_backward(&call->args, NULL);
    free(memory);
    return status;
}

static flash_status_t run(backward_call_t *call) {
    uint64_t least, best;
    FLASH_TRY(flash_backward_workspace_size(&call->args, &least, &best));
    void *memory = least > call->args.workspace_size ? malloc(best) : NULL;
    return memory != NULL ? run_in(call, memory, best) : flash_backward(&call->args, NULL);
}

static flash_status_t backward_cpu(const XLA_FFI_CallFrame *frame) {
    backward_call_t call;
    FLASH_TRY(backward_call_read(frame, FLASH_DEVICE_CPU, &call));
    FLASH_TRY(call_check_ends(&call.forward));
    return run(&call);
}

XLA_FFI_Error *flash_xla_backward_cpu(XLA_FFI_CallFrame *frame) {
    return frame_run_cpu(frame, backward_cpu);
}

/* ---- CUDA devices ---- */

static XLA_FFI_Error *prepare_cuda(const XLA_FFI_CallFrame *frame, int32_t device) {
    backward_call_t call;
    flash_status_t status = backward_call_read(frame, device, &call);
    if (status == FLASH_SUCCESS)
        status = flash_backward_prepare(&call.args);
    return frame_error(frame, status);
}

static XLA_FFI_Error *backward_cuda(const XLA_FFI_CallFrame *frame, int32_t device) {
    backward_call_t call;
    flash_stream_t stream;
    XLA_FFI_Error *error = frame_stream(frame, &stream);
    if (error != NULL)
        return error;
    flash_status_t status = backward_call_read(frame, device, &call);
    if (status == FLASH_SUCCESS)
        status = flash_backward(&call.args, stream);
    return frame_error(frame, status);
}

XLA_FFI_Error *flash_xla_backward_cuda(XLA_FFI_CallFrame *frame) {
    return frame_run_cuda(frame, prepare_cuda, backward_cuda);
}
