/*
 * This file has the exported handler of gradients. What a call says is read in backward_call.c.
 */
#include "xla/xla_backward.h"

#include "core/status.h"
#include "xla/backward_call.h"
#include "xla/frame.h"

#include <stdlib.h>

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
    FLASH_TRY(run(&call));
    backward_call_clear_rest(&call);
    return FLASH_SUCCESS;
}

XLA_FFI_Error *flash_xla_backward_cpu(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Metadata *metadata = frame_wants_metadata(frame);
    if (metadata != NULL)
        return frame_describe(metadata, 0);
    if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
        return NULL;
    return frame_error(frame, backward_cpu(frame));
}
