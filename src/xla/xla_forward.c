/*
 * This file has the exported handlers. What a call says is read in call.c.
 */
#include "xla/xla_forward.h"

#include "core/status.h"
#include "xla/call.h"
#include "xla/frame.h"

#include <stdlib.h>

/* ---- The CPU ---- */

/*
 * The tasks run in the library's own threads, not in XLA's pool: XLA counts on no closure to begin
 * before another ends, does not say which of its threads are free, and a closure that it begins
 * late outlives the call. With the library's threads FLASHATTN_NUM_THREADS and
 * flash_set_num_threads() hold for this door as for every other.
 */
static flash_status_t run_in(const call_t *call, void *memory, uint64_t size) {
    flash_forward_args_t args = call->args;
    args.workspace = memory;
    args.workspace_size = size;
    const flash_status_t status = flash_forward(&args, NULL, NULL);
    free(memory);
    return status;
}

static flash_status_t forward_cpu(const XLA_FFI_CallFrame *frame) {
    call_t call;
    uint64_t size;
    FLASH_TRY(call_read(frame, FLASH_DEVICE_CPU, &call));
    FLASH_TRY(call_check_ends(&call));
    FLASH_TRY(flash_workspace_size(&call.args, NULL, &size));
    void *memory = size > call.args.workspace_size ? malloc(size) : NULL;
    return memory != NULL ? run_in(&call, memory, size) : flash_forward(&call.args, NULL, NULL);
}

XLA_FFI_Error *flash_xla_forward_cpu(XLA_FFI_CallFrame *frame) {
    return frame_run_cpu(frame, forward_cpu);
}

/* ---- CUDA devices ---- */

static XLA_FFI_Error *prepare_cuda(const XLA_FFI_CallFrame *frame, int32_t device) {
    call_t call;
    flash_status_t status = call_read(frame, device, &call);
    if (status == FLASH_SUCCESS)
        status = flash_prepare(&call.args, NULL);
    return frame_error(frame, status);
}

static XLA_FFI_Error *forward_cuda(const XLA_FFI_CallFrame *frame, int32_t device) {
    call_t call;
    flash_stream_t stream;
    XLA_FFI_Error *error = frame_stream(frame, &stream);
    if (error != NULL)
        return error;
    flash_status_t status = call_read(frame, device, &call);
    if (status == FLASH_SUCCESS)
        status = flash_forward(&call.args, NULL, stream);
    return frame_error(frame, status);
}

XLA_FFI_Error *flash_xla_forward_cuda(XLA_FFI_CallFrame *frame) {
    return frame_run_cuda(frame, prepare_cuda, forward_cuda);
}
