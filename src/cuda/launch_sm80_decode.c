/*
 * Launching a decode kernel, and behind it the one that merges the pieces of cut sequences.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/error.h"
#include "cuda/grid.h"
#include "cuda/launch.h"
#include "cuda/plan_sm80_decode.h"
#include "cuda/scope.h"

#include <inttypes.h>
#include <stddef.h>

static flash_status_t workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size) {
    const decode_plan_t plan = plan_sm80_decode(&kernel->config, problem, device);
    *size = plan_sm80_decode_workspace(&plan);
    return FLASH_SUCCESS;
}

static flash_status_t check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device) {
    uint64_t size;
    FLASH_TRY(workspace(kernel, problem, device, &size));
    FLASH_REQUIRE(problem->workspace_size >= size, FLASH_ERROR_WORKSPACE_TOO_SMALL,
                  "workspace_size is %" PRIu64 ": %s needs %" PRIu64, problem->workspace_size,
                  kernel->name, size);
    FLASH_REQUIRE(problem->workspace != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "workspace is NULL: %s needs %" PRIu64 " bytes", kernel->name, size);
    return FLASH_SUCCESS;
}

static const void *combine_symbol(void) {
    union {
        void (*function)(sm80_decode_params_t);
        const void *symbol;
    } u = {.function = flash_sm80_decode_combine};
    return u.symbol;
}

/* Compute capability 9.0 and newer can start the second kernel before the first one has ended. */
static flash_status_t enqueue_combine(const decode_plan_t *plan, const device_t *device,
                                      flash_stream_t stream) {
    const cuda_grid_t grid = {.blocks = plan->combine_blocks,
                              .threads = DECODE_WARP_THREADS * DECODE_COMBINE_WARPS,
                              .is_dependent = device->compute_capability >= 90};
    return launch_grid(combine_symbol(), &grid, &plan->params, stream);
}

static flash_status_t load_combine(void) {
    struct cudaFuncAttributes attributes;
    FLASH_TRY_CUDA(cudaFuncGetAttributes(&attributes, combine_symbol()));
    return FLASH_SUCCESS;
}

/* Loads both kernels: a stream that is capturing must not be the first to want one. */
static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_prepare(kernel, problem, device));
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = load_combine();
    cuda_scope_leave(&scope);
    return status;
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    decode_plan_t plan = plan_sm80_decode(&kernel->config, problem, device);
    plan_sm80_decode_place(&plan, problem->workspace);
    const cuda_grid_t grid = {.blocks = plan.blocks,
                              .threads = decode_block_threads(&kernel->config),
                              .shared_bytes = decode_shared_bytes(&kernel->config)};
    FLASH_TRY(launch_grid(cuda_kernel_symbol(kernel), &grid, &plan.params, stream));
    return plan.combine_blocks > 0 ? enqueue_combine(&plan, device, stream) : FLASH_SUCCESS;
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    FLASH_TRY(check_workspace(kernel, problem, device));
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

const launch_ops_t sm80_decode_ops = {.workspace = workspace,
                                      .prepare = prepare,
                                      .check_workspace = check_workspace,
                                      .launch = launch};
