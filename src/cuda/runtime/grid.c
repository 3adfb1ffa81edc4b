/*
 * This file launches a kernel through the CUDA runtime.
 */
#include "cuda/runtime/grid.h"

#include "cuda/runtime/error.h"

flash_status_t launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                           flash_stream_t stream) {
    void *arguments[] = {(void *)(uintptr_t)params};
    cudaLaunchAttribute dependent = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                     .val = {.programmaticStreamSerializationAllowed = 1}};
    const cudaLaunchConfig_t config = {.gridDim = {(unsigned)grid->blocks, 1, 1},
                                       .blockDim = {(unsigned)grid->threads, 1, 1},
                                       .dynamicSmemBytes = (size_t)grid->shared_bytes,
                                       .stream = stream,
                                       .attrs = &dependent,
                                       .numAttrs = grid->is_dependent ? 1 : 0};
    FLASH_TRY_CUDA(cudaLaunchKernelExC(&config, symbol, arguments));
    return FLASH_SUCCESS;
}
