/*
 * This file answers XLA, with an error or with what a handler is, and asks it where a call runs.
 */
#include "xla/frame.h"

#include "core/status.h"

/* ---- Errors ---- */

static XLA_FFI_Error_Code code_of(flash_status_t status) {
    switch (status) {
    case FLASH_ERROR_INVALID_ARGUMENT:
    case FLASH_ERROR_INVALID_CONFIG:
    case FLASH_ERROR_WORKSPACE_TOO_SMALL:
        return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case FLASH_ERROR_UNSUPPORTED:
    case FLASH_ERROR_NOT_BUILT:
        return XLA_FFI_Error_Code_UNIMPLEMENTED;
    case FLASH_ERROR_OUT_OF_MEMORY:
        return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    case FLASH_ERROR_NO_DEVICE:
        return XLA_FFI_Error_Code_FAILED_PRECONDITION;
    default:
        return XLA_FFI_Error_Code_INTERNAL;
    }
}

XLA_FFI_Error *frame_error(const XLA_FFI_CallFrame *frame, flash_status_t status) {
    if (status == FLASH_SUCCESS)
        return NULL;
    XLA_FFI_Error_Create_Args args = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
        .message = status_message(),
        .errc = code_of(status),
    };
    return frame->api->XLA_FFI_Error_Create(&args);
}

/* ---- What XLA asks first ---- */

XLA_FFI_Metadata *frame_wants_metadata(const XLA_FFI_CallFrame *frame) {
    for (XLA_FFI_Extension_Base *e = frame->extension_start; e != NULL; e = e->next)
        if (e->type == XLA_FFI_Extension_Metadata)
            return ((XLA_FFI_Metadata_Extension *)e)->metadata;
    return NULL;
}

XLA_FFI_Error *frame_describe(XLA_FFI_Metadata *metadata, XLA_FFI_Handler_Traits traits) {
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = traits;
    return NULL;
}

/* ---- Where a call runs ---- */

XLA_FFI_Error *frame_device(const XLA_FFI_CallFrame *frame, int32_t *device) {
    XLA_FFI_DeviceOrdinal_Get_Args args = {
        .struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE,
        .ctx = frame->ctx,
    };
    XLA_FFI_Error *error = frame->api->XLA_FFI_DeviceOrdinal_Get(&args);
    *device = FLASH_DEVICE_CUDA + args.device_ordinal;
    return error;
}

XLA_FFI_Error *frame_stream(const XLA_FFI_CallFrame *frame, flash_stream_t *stream) {
    XLA_FFI_Stream_Get_Args args = {
        .struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE,
        .ctx = frame->ctx,
    };
    XLA_FFI_Error *error = frame->api->XLA_FFI_Stream_Get(&args);
    *stream = args.stream;
    return error;
}

XLA_FFI_Error *frame_run_cpu(const XLA_FFI_CallFrame *frame,
                             flash_status_t (*compute)(const XLA_FFI_CallFrame *frame)) {
    XLA_FFI_Metadata *metadata = frame_wants_metadata(frame);
    if (metadata != NULL)
        return frame_describe(metadata, 0);
    if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
        return NULL;
    return frame_error(frame, compute(frame));
}

XLA_FFI_Error *frame_run_cuda(const XLA_FFI_CallFrame *frame, frame_stage_t *prepare,
                              frame_stage_t *compute) {
    XLA_FFI_Metadata *metadata = frame_wants_metadata(frame);
    int32_t device;
    if (metadata != NULL)
        return frame_describe(metadata, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
    if (frame->stage < XLA_FFI_ExecutionStage_INITIALIZE)
        return NULL;
    XLA_FFI_Error *error = frame_device(frame, &device);
    if (error != NULL)
        return error;
    return frame->stage == XLA_FFI_ExecutionStage_INITIALIZE ? prepare(frame, device)
                                                             : compute(frame, device);
}
