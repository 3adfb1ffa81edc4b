/*
 * A decode launch enqueues the decode kernel, then the one that merges pieces.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/grid.h"
#include "cuda/launch.h"
#include "cuda/merge_decode.h"
#include "cuda/plan_decode.h"

static const decode_merge_t merge = {.kernel = flash_sm80_decode_combine, .parts_of_block = 1};

/* Both kernels are loaded here, because loading is not allowed while a stream is captured. */
static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    FLASH_TRY(cuda_prepare(kernel, problem, device));
    return merge_decode_prepare(&merge, device);
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    decode_plan_t plan = plan_sm80_decode(&kernel->config, problem, device);
    plan_decode_place(&plan, problem->workspace);
    const cuda_grid_t grid = {.blocks = plan.blocks,
                              .threads = decode_block_threads(&kernel->config),
                              .shared_bytes = decode_shared_bytes(&kernel->config)};
    FLASH_TRY(launch_grid(cuda_kernel_symbol(kernel), &grid, &plan.params, stream));
    return merge_decode_enqueue(&merge, &plan, device, stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    FLASH_TRY(merge_decode_check_workspace(kernel, problem, device));
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

const launch_ops_t sm80_decode_ops = {.workspace = merge_decode_workspace,
                                      .prepare = prepare,
                                      .check_workspace = merge_decode_check_workspace,
                                      .launch = launch};
