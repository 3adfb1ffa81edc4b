/*
 * Launching on CUDA devices: what the kernels of every family have in common.
 */
#include "launch_cuda.h"

#include "common/combine.h"
#include "cuda_block.h"
#include "cuda_error.h"
#include "cuda_scope.h"
#include "kernel_table.h"
#include "launch_families.h"
#include "launch_grid.h"
#include "tensor_map.h"

enum { SHARED_BYTES_BY_DEFAULT = 48 * 1024 };

/* The function as the runtime's calls take it; C has no conversion between the two kinds. */
static const void *kernel_symbol(const flash_kernel_t *kernel) {
    union {
        void (*function)(void);
        const void *symbol;
    } u = {.function = kernel->function};
    return u.symbol;
}

/* Not remembered: a device reset would forget it, and the runtime sets it in well under a
 * microsecond. */
static flash_status_t set_attributes(const flash_kernel_t *kernel) {
    const cuda_block_t block = cuda_block(&kernel->config);
    if (block.shared_bytes + block.static_shared_bytes > SHARED_BYTES_BY_DEFAULT)
        FLASH_TRY_CUDA(cudaFuncSetAttribute(kernel_symbol(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            block.shared_bytes));
    return FLASH_SUCCESS;
}

static flash_status_t launch_forward(const flash_kernel_t *kernel, const problem_t *problem,
                                     const device_t *device, flash_stream_t stream) {
    const flash_config_t *config = &kernel->config;
    const void *symbol = kernel_symbol(kernel);
    FLASH_TRY(set_attributes(kernel));
    if (config->arch == FLASH_ARCH_SM90)
        return launch_sm90(symbol, config, problem, device, stream);
    return launch_sm80(symbol, config, problem, stream);
}

flash_status_t launch_cuda(const flash_kernel_t *kernel, const problem_t *problem,
                           const device_t *device, flash_stream_t stream) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = launch_forward(kernel, problem, device, stream);
    cuda_scope_leave(&scope);
    return status;
}

static flash_status_t load(const flash_kernel_t *kernel, struct cudaFuncAttributes *attributes) {
    FLASH_TRY_CUDA(cudaFuncGetAttributes(attributes, kernel_symbol(kernel)));
    if (kernel->config.arch == FLASH_ARCH_SM90)
        FLASH_TRY(tensor_map_prepare());
    return set_attributes(kernel);
}

flash_status_t launch_cuda_prepare(const flash_kernel_t *kernel, const device_t *device) {
    cuda_scope_t scope;
    struct cudaFuncAttributes attributes;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = load(kernel, &attributes);
    cuda_scope_leave(&scope);
    return status;
}

/* ---- flash_combine ---- */

static flash_status_t launch_combine_rows(const flash_combine_args_t *args, flash_stream_t stream) {
    enum { MOST_BLOCKS = 1 << 20 }; /* beyond, each takes several rows */
    union {
        void (*function)(flash_combine_args_t);
        const void *symbol;
    } u = {.function = flash_combine_rows};
    const int64_t n_rows = args->batch * args->n_heads * args->seqlen_q;
    const int64_t blocks = (n_rows + COMBINE_WARPS - 1) / COMBINE_WARPS;
    const cuda_grid_t grid = {.blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS,
                              .threads = SM80_WARP_THREADS * COMBINE_WARPS};
    if (n_rows == 0)
        return FLASH_SUCCESS;
    return launch_grid(u.symbol, &grid, args, stream);
}

flash_status_t launch_cuda_combine(const flash_combine_args_t *args, const device_t *device,
                                   flash_stream_t stream) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = launch_combine_rows(args, stream);
    cuda_scope_leave(&scope);
    return status;
}

/* ---- flash_kernel_resources ---- */

static flash_status_t get_resources(const flash_kernel_t *kernel,
                                    flash_kernel_resources_t *resources) {
    const cuda_block_t block = cuda_block(&kernel->config);
    struct cudaFuncAttributes attributes;
    int blocks = 0;
    FLASH_TRY(load(kernel, &attributes));
    resources->threads = block.threads;
    resources->registers = attributes.numRegs;
    resources->local_memory = (int32_t)attributes.localSizeBytes;
    resources->shared_memory = block.shared_bytes;
    FLASH_TRY_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel_symbol(kernel), resources->threads, (size_t)resources->shared_memory));
    resources->blocks_per_multiprocessor = blocks;
    return FLASH_SUCCESS;
}

flash_status_t launch_cuda_resources(const flash_kernel_t *kernel, const device_t *device,
                                     flash_kernel_resources_t *resources) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = get_resources(kernel, resources);
    cuda_scope_leave(&scope);
    return status;
}
