/*
 * The runtime keeps a current device per host thread.
 */
#include "cuda/runtime/scope.h"

#include "cuda/runtime/error.h"

flash_status_t cuda_scope_enter(const device_t *device, cuda_scope_t *scope) {
    scope->switched = false;
    FLASH_TRY_CUDA(cudaGetDevice(&scope->previous));
    if (scope->previous == device->ordinal)
        return FLASH_SUCCESS;
    FLASH_TRY_CUDA(cudaSetDevice(device->ordinal));
    scope->switched = true;
    return FLASH_SUCCESS;
}

void cuda_scope_leave(const cuda_scope_t *scope) {
    if (scope->switched)
        cudaSetDevice(scope->previous);
}
