/*
 * This file launches the kernels that merge pieces (merge_decode.h).
 */
#include "cuda/decode/merge_decode.h"

#include "config/kernel_table.h"
#include "core/int64.h"
#include "cuda/family.h"
#include "cuda/runtime/error.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/scope.h"
#include "cuda/tuning.h"

flash_status_t merge_decode_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, uint64_t *size) {
    const decode_plan_t plan = kernel_op(kernel)->cuda->plan(&kernel->config, problem, device);
    *size = plan_decode_workspace(&plan);
    return FLASH_SUCCESS;
}

flash_status_t merge_decode_check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                            const device_t *device) {
    uint64_t size;
    FLASH_TRY(merge_decode_workspace(kernel, problem, device, &size));
    return cuda_require_workspace(kernel, problem, size);
}

static const void *symbol_of(const decode_merge_t *merge) {
    union {
        void (*function)(decode_params_t);
        const void *symbol;
    } u = {.function = merge->kernel};
    return u.symbol;
}

static flash_status_t load(const decode_merge_t *merge) {
    struct cudaFuncAttributes attributes;
    FLASH_TRY_CUDA(cudaFuncGetAttributes(&attributes, symbol_of(merge)));
    return FLASH_SUCCESS;
}

flash_status_t merge_decode_prepare(const decode_merge_t *merge, const device_t *device) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = load(merge);
    cuda_scope_leave(&scope);
    return status;
}

/* From compute capability 9.0 on, the merging kernel can start before the decode kernel ends. */
flash_status_t merge_decode_enqueue(const decode_merge_t *merge, const decode_plan_t *plan,
                                    const device_t *device, flash_stream_t stream) {
    const int64_t most = MERGE_BLOCKS_PER_MULTIPROCESSOR * (int64_t)device->n_multiprocessors;
    const int64_t blocks = divide_up(plan->merge_parts, merge->parts_of_block);
    const cuda_grid_t grid = {.blocks = min64(blocks, most),
                              .threads = DECODE_WARP_THREADS * DECODE_COMBINE_WARPS,
                              .is_dependent = device->compute_capability >= 90};
    if (plan->merge_parts == 0)
        return FLASH_SUCCESS;
    return launch_grid(symbol_of(merge), &grid, &plan->params, stream);
}
