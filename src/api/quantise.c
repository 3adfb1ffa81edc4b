/*
 * This file has the exported call that quantises.
 */
#include "api/device.h"
#include "arguments/executor.h"
#include "arguments/quantise_arguments.h"
#include "core/call_scope.h"
#include "core/status.h"
#include "cpu/cpu_quantise.h"
#include "cuda/runtime/cuda_quantise.h"

flash_status_t flash_quantise(const flash_quantise_args_t *args, flash_stream_t stream) {
    FLASH_CALL_SCOPE();
    flash_quantise_args_t checked;
    device_t device = {0};
    executor_t executor;
    int64_t n_tokens;
    FLASH_TRY(arguments_read_quantise(args, &checked, &n_tokens));
    FLASH_TRY(arguments_read_executor(checked.executor, &executor));
    FLASH_TRY(device_describe(checked.device, &device));
    FLASH_TRY(device_check_stream(&device, stream));
    return device_is_cpu(&device) ? cpu_quantise(&checked, n_tokens, &executor)
                                  : cuda_quantise(&checked, &device, stream);
}
