/*
 * A launch of SM80_DECODE, SM80_MLA or SM80_WIDE enqueues the decode kernel, then the one that
 * merges pieces.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/decode/merge_decode.h"
#include "cuda/decode/plan_decode.h"
#include "cuda/family.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"

static const decode_merge_t merge = {.kernel = flash_sm80_decode_combine, .parts_of_block = 1};

/* Both kernels are loaded here, because loading is not allowed while a stream is captured. */
static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    FLASH_TRY(cuda_prepare(kernel, problem, device));
    return merge_decode_prepare(&merge, device);
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const cuda_block_t block = kernel_op(kernel)->cuda->block(&kernel->config);
    decode_plan_t plan = kernel_op(kernel)->cuda->plan(&kernel->config, problem, device);
    plan_decode_place(&plan, problem->workspace);
    const cuda_grid_t grid = {
        .blocks = plan.blocks, .threads = block.threads, .shared_bytes = block.shared_bytes};
    FLASH_TRY(launch_grid(cuda_kernel_symbol(kernel), &grid, &plan.params, stream));
    return merge_decode_enqueue(&merge, &plan, device, stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    FLASH_TRY(merge_decode_check_workspace(kernel, problem, device));
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

const family_calls_t sm80_decode_calls = {.workspace = merge_decode_workspace,
                                          .prepare = prepare,
                                          .check_workspace = merge_decode_check_workspace,
                                          .launch = launch};
