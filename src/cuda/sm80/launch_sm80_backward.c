/*
 * A kernel of gradients of the SM80 family is launched with a block per tile.
 */
#include "config/kernel_table.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"
#include "kernels/common/gradients.h"
#include "kernels/sm80/backward_kernel.h"

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const cuda_family_t *family = kernel_op(kernel)->cuda;
    const cuda_block_t block = family->block(&kernel->config);
    const flash_backward_params_t params = {problem->params, problem->gradients};
    const cuda_grid_t grid = {.blocks = sm80_backward_section_blocks(
                                  &kernel->config, &problem->params, &problem->gradients.section),
                              .threads = block.threads,
                              .shared_bytes = block.shared_bytes};
    (void)device;
    if (grid.blocks == 0)
        return FLASH_SUCCESS;
    return launch_grid(cuda_kernel_symbol(kernel), &grid, &params, stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

const family_calls_t sm80_backward_calls = {.workspace = cuda_no_workspace,
                                            .prepare = cuda_prepare,
                                            .check_workspace = cuda_needs_no_workspace,
                                            .launch = launch};
