/*
 * CUDA runtime errors as statuses of this library.
 */
#ifndef FLASH_CUDA_ERROR_H
#define FLASH_CUDA_ERROR_H

#include "core/status.h"

#include <cuda_runtime_api.h>

/* The status of a failed runtime call, with its name and CUDA's own words. */
flash_status_t cuda_error_status(cudaError_t error, const char *call);

/* Passes the failure of a runtime call on to the caller. */
#define FLASH_TRY_CUDA(call)                                                                       \
    do {                                                                                           \
        const cudaError_t try_error = (call);                                                      \
        if (try_error != cudaSuccess)                                                              \
            return cuda_error_status(try_error, #call);                                            \
    } while (0)

#endif
