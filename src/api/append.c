/*
 * This file has the exported call that appends to a cache.
 */
#include "api/device.h"
#include "arguments/append_arguments.h"
#include "arguments/executor.h"
#include "core/call_scope.h"
#include "core/status.h"
#include "cpu/cpu_append.h"
#include "cuda/runtime/cuda_append.h"

flash_status_t flash_kv_append(const flash_kv_append_args_t *args, flash_stream_t stream) {
    FLASH_CALL_SCOPE();
    flash_kv_append_args_t checked;
    append_params_t params;
    device_t device = {0};
    executor_t executor;
    FLASH_TRY(arguments_read_append(args, &checked, &params));
    FLASH_TRY(arguments_read_executor(checked.executor, &executor));
    FLASH_TRY(device_describe(checked.device, &device));
    FLASH_TRY(device_check_stream(&device, stream));
    return device_is_cpu(&device) ? cpu_append(&params, &executor)
                                  : cuda_append(&params, &device, stream);
}
