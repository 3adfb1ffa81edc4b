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
static const void *symbol_of(void (*function)(void)) {
    union {
        void (*function)(void);
        const void *symbol;
    } u = {.function = function};
    return u.symbol;
}

const void *cuda_kernel_symbol(const flash_kernel_t *kernel) {
    return symbol_of(kernel->function);
}

const void *cuda_dq_of_ds_symbol(const flash_kernel_t *kernel) {
    return symbol_of(kernel->dq_of_ds);
}

static cuda_block_t block_of(const flash_kernel_t *kernel) {
    return kernel_op(kernel)->cuda->block(&kernel->config);
}

/* A device reset would forget attributes, so each launch sets them, in well under a microsecond. */
static flash_status_t set_attributes(const void *symbol, cuda_block_t block) {
    if (block.shared_bytes + block.static_shared_bytes > SHARED_BYTES_BY_DEFAULT)
        FLASH_TRY_CUDA(cudaFuncSetAttribute(symbol, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            block.shared_bytes));
    return FLASH_SUCCESS;
}

static flash_status_t set_kernel_attributes(const flash_kernel_t *kernel) {
    return set_attributes(cuda_kernel_symbol(kernel), block_of(kernel));
}

static flash_status_t set_dq_of_ds_attributes(const flash_kernel_t *kernel) {
    return set_attributes(cuda_dq_of_ds_symbol(kernel),
                          kernel_op(kernel)->cuda->dq_of_ds_block(&kernel->config));
}

flash_status_t cuda_launch(const flash_kernel_t *kernel, const problem_t *problem,
                           const device_t *device, flash_stream_t stream, cuda_enqueue_t *enqueue) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    flash_status_t status = set_kernel_attributes(kernel);
    if (status == FLASH_SUCCESS)
        status = enqueue(kernel, problem, device, stream);
    cuda_scope_leave(&scope);
    return status;
}

flash_status_t cuda_launch_dq_of_ds(const flash_kernel_t *kernel, const problem_t *problem,
                                    const device_t *device, flash_stream_t stream,
                                    cuda_enqueue_t *enqueue) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    flash_status_t status = set_dq_of_ds_attributes(kernel);
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
    return set_kernel_attributes(kernel);
}

static flash_status_t load_dq_of_ds(const flash_kernel_t *kernel) {
    struct cudaFuncAttributes attributes;
    if (kernel->dq_of_ds == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY_CUDA(cudaFuncGetAttributes(&attributes, cuda_dq_of_ds_symbol(kernel)));
    return set_dq_of_ds_attributes(kernel);
}

flash_status_t cuda_prepare(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device) {
    cuda_scope_t scope;
    struct cudaFuncAttributes attributes;
    (void)problem;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    flash_status_t status = load(kernel, &attributes);
    if (status == FLASH_SUCCESS)
        status = load_dq_of_ds(kernel);
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
