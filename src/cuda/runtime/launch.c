/*
 * This file holds what the launches of all CUDA families share.
 */
#include "cuda/runtime/launch.h"

#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/runtime/error.h"
#include "cuda/runtime/scope.h"

#include <inttypes.h>

enum { SHARED_BYTES_BY_DEFAULT = 48 * 1024 };

/* A union converts the function pointer, because C does not. */
const void *cuda_kernel_symbol(const flash_kernel_t *kernel) {
    union {
        void (*function)(void);
        const void *symbol;
    } u = {.function = kernel->function};
    return u.symbol;
}

static cuda_block_t block_of(const flash_kernel_t *kernel) {
    return kernel_op(kernel)->cuda->block(&kernel->config);
}

/* A device reset would forget attributes, so each launch sets them, in well under a microsecond. */
static flash_status_t set_attributes(const flash_kernel_t *kernel) {
    const cuda_block_t block = block_of(kernel);
    if (block.shared_bytes + block.static_shared_bytes > SHARED_BYTES_BY_DEFAULT)
        FLASH_TRY_CUDA(cudaFuncSetAttribute(cuda_kernel_symbol(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            block.shared_bytes));
    return FLASH_SUCCESS;
}

flash_status_t cuda_launch(const flash_kernel_t *kernel, const problem_t *problem,
                           const device_t *device, flash_stream_t stream, cuda_enqueue_t *enqueue) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    flash_status_t status = set_attributes(kernel);
    if (status == FLASH_SUCCESS)
        status = enqueue(kernel, problem, device, stream);
    cuda_scope_leave(&scope);
    return status;
}

flash_status_t cuda_no_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                 const device_t *device, uint64_t *size) {
    (void)kernel;
    (void)problem;
    (void)device;
    *size = 0;
    return FLASH_SUCCESS;
}

flash_status_t cuda_needs_no_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                       const device_t *device) {
    (void)kernel;
    (void)problem;
    (void)device;
    return FLASH_SUCCESS;
}

flash_status_t cuda_require_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      uint64_t size) {
    if (size == 0)
        return FLASH_SUCCESS;
    FLASH_REQUIRE(problem->workspace_size >= size, FLASH_ERROR_WORKSPACE_TOO_SMALL,
                  "workspace_size is %" PRIu64 ": %s needs %" PRIu64, problem->workspace_size,
                  kernel->name, size);
    FLASH_REQUIRE(problem->workspace != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "workspace is NULL: %s needs %" PRIu64 " bytes", kernel->name, size);
    return FLASH_SUCCESS;
}

static flash_status_t load(const flash_kernel_t *kernel, struct cudaFuncAttributes *attributes) {
    FLASH_TRY_CUDA(cudaFuncGetAttributes(attributes, cuda_kernel_symbol(kernel)));
    return set_attributes(kernel);
}

flash_status_t cuda_prepare(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    cuda_scope_t scope;
    struct cudaFuncAttributes attributes;
    (void)problem;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = load(kernel, &attributes);
    cuda_scope_leave(&scope);
    return status;
}

/* ---- flash_kernel_resources ---- */

static flash_status_t get_resources(const flash_kernel_t *kernel,
                                    flash_kernel_resources_t *resources) {
    const cuda_block_t block = block_of(kernel);
    struct cudaFuncAttributes attributes;
    int blocks = 0;
    FLASH_TRY(load(kernel, &attributes));
    resources->threads = block.threads;
    resources->registers = attributes.numRegs;
    resources->local_memory = (int32_t)attributes.localSizeBytes;
    resources->shared_memory = block.shared_bytes;
    FLASH_TRY_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, cuda_kernel_symbol(kernel), resources->threads, (size_t)resources->shared_memory));
    resources->blocks_per_multiprocessor = blocks;
    return FLASH_SUCCESS;
}

flash_status_t cuda_resources(const flash_kernel_t *kernel, const device_t *device,
                              flash_kernel_resources_t *resources) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = get_resources(kernel, resources);
    cuda_scope_leave(&scope);
    return status;
}
