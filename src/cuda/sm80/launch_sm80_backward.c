/*
 * A kernel of gradients of the SM80 family is launched with a block per tile.
 */
#include "config/kernel_table.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"
#include "kernels/common/gradients.h"
#include "kernels/sm80/backward_kernel.h"

/* Enqueues a kernel of these blocks over the section. config: the kernel's. */
static flash_status_t enqueue_blocks(const void *symbol, const flash_config_t *config,
                                     cuda_block_t block, const problem_t *problem,
                                     flash_stream_t stream) {
    const flash_backward_params_t params = {problem->params, problem->gradients};
    const cuda_grid_t grid = {.blocks = sm80_backward_section_blocks(config, &problem->params,
                                                                     &problem->gradients.section),
                              .threads = block.threads,
                              .shared_bytes = block.shared_bytes};
    if (grid.blocks == 0)
        return FLASH_SUCCESS;
    return launch_grid(symbol, &grid, &params, stream);
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const flash_config_t *config = &kernel->config;
    (void)device;
    return enqueue_blocks(cuda_kernel_symbol(kernel), config,
                          kernel_op(kernel)->cuda->block(config), problem, stream);
}

static flash_status_t enqueue_dq_of_ds(const flash_kernel_t *kernel, const problem_t *problem,
                                       const device_t *device, flash_stream_t stream) {
    const flash_config_t of_ds = sm80_dq_of_ds_config(&kernel->config);
    (void)device;
    return enqueue_blocks(cuda_dq_of_ds_symbol(kernel), &of_ds,
                          kernel_op(kernel)->cuda->dq_of_ds_block(&kernel->config), problem,
                          stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

static flash_status_t launch_dq_of_ds(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, flash_stream_t stream) {
    return cuda_launch_dq_of_ds(kernel, problem, device, stream, enqueue_dq_of_ds);
}

const family_calls_t sm80_backward_calls = {.workspace = cuda_no_workspace,
                                            .prepare = cuda_prepare,
                                            .check_workspace = cuda_needs_no_workspace,
                                            .launch = launch,
                                            .launch_dq_of_ds = launch_dq_of_ds};
