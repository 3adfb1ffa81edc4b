/*
 * This file makes statuses of CUDA runtime errors.
 */
#include "cuda/runtime/error.h"

flash_status_t cuda_error_status(cudaError_t error, const char *call) {
    const flash_status_t status =
        error == cudaErrorMemoryAllocation ? FLASH_ERROR_OUT_OF_MEMORY : FLASH_ERROR_CUDA;
    return status_fail(status, "%s: %s (%s)", call, cudaGetErrorString(error),
                       cudaGetErrorName(error));
}
