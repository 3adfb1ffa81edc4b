/*
 * Errors of the CUDA runtime become statuses of this library.
 */
#ifndef FLASH_CUDA_ERROR_H
#define FLASH_CUDA_ERROR_H

#include "core/status.h"

#include <cuda_runtime_api.h>

/* Returns the status of a failed runtime call. Its message has the call and CUDA's own words. */
flash_status_t cuda_error_status(cudaError_t error, const char *call);

/* Returns from the caller with a status if a runtime call fails. */
#define FLASH_TRY_CUDA(call)                                                                       \
    do {                                                                                           \
        const cudaError_t try_error = (call);                                                      \
        if (try_error != cudaSuccess)                                                              \
            return cuda_error_status(try_error, #call);                                            \
    } while (0)

#endif
