/*
 * A kernel of gradients of the SM90 family is launched with tensor maps of Q, K, V and dO, and with
 * a block per tile.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"
#include "cuda/sm90/sm90_backward.h"
#include "cuda/tma/tensor_map.h"
#include "cuda/tma/tma_tensor.h"
#include "kernels/sm90/backward_kernel.h"

static flash_status_t encode_maps(const flash_config_t *config, const problem_t *problem,
                                  sm90_backward_params_t *params) {
    const flash_params_t p = sm90_backward_inputs(problem);
    const tma_tensor_t q = tma_tensor_q(config, &p), k = tma_tensor_k(config, &p);
    const tma_tensor_t v = tma_tensor_v(config, &p), d_o = tma_tensor_o(config, &p);
    const tensor_map_box_t still = {.rows = sm90_backward_rows(config), .heads = 1};
    const tensor_map_box_t moving = {.rows = sm90_backward_step(config), .heads = 1};
    const tensor_map_box_t queries = sm90_writes_dq(config) ? still : moving;
    const tensor_map_box_t keys = sm90_writes_dq(config) ? moving : still;
    params->entry_tokens =
        (sm90_entry_tokens_t){(int32_t)q.entry_tokens, (int32_t)k.entry_tokens,
                              (int32_t)v.entry_tokens, (int32_t)d_o.entry_tokens};
    FLASH_TRY(tensor_map_encode(&q, config->dtype, queries, &params->q));
    FLASH_TRY(tensor_map_encode(&k, config->dtype, keys, &params->k));
    FLASH_TRY(tensor_map_encode(&v, config->dtype, keys, &params->v));
    return tensor_map_encode(&d_o, config->dtype, queries, &params->d_o);
}

/* Enqueues a kernel of the row, of this configuration. */
static flash_status_t enqueue_kernel(const flash_config_t *config, const void *symbol,
                                     cuda_block_t block, const problem_t *problem,
                                     flash_stream_t stream) {
    const flash_params_t *p = &problem->params;
    const flash_section_t *section = &problem->gradients.section;
    const cuda_grid_t grid = {.blocks = sm90_backward_section_tiles(config, p, section),
                              .threads = block.threads,
                              .shared_bytes = block.shared_bytes};
    sm90_backward_params_t params = {
        .problem = *p,
        .gradients = problem->gradients,
        .schedule = {.head_tiles = (uint32_t)sm90_backward_tiles_of_head(config, p),
                     .section_heads = (uint32_t)sm90_backward_section(config, p, section)}};
    if (grid.blocks == 0)
        return FLASH_SUCCESS;
    FLASH_TRY(encode_maps(config, problem, &params));
    return launch_grid(symbol, &grid, &params, stream);
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const cuda_block_t block = kernel_op(kernel)->cuda->block(&kernel->config);
    (void)device;
    return enqueue_kernel(&kernel->config, cuda_kernel_symbol(kernel), block, problem, stream);
}

static flash_status_t enqueue_dq_of_ds(const flash_kernel_t *kernel, const problem_t *problem,
                                       const device_t *device, flash_stream_t stream) {
    const cuda_block_t block = kernel_op(kernel)->cuda->dq_of_ds_block(&kernel->config);
    const flash_config_t config = sm90_dq_of_ds(&kernel->config);
    (void)device;
    return enqueue_kernel(&config, cuda_dq_of_ds_symbol(kernel), block, problem, stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

static flash_status_t launch_dq_of_ds(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, flash_stream_t stream) {
    return cuda_launch_dq_of_ds(kernel, problem, device, stream, enqueue_dq_of_ds);
}

static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    FLASH_TRY(tensor_map_prepare());
    return cuda_prepare(kernel, problem, device);
}

const family_calls_t sm90_backward_calls = {.workspace = cuda_no_workspace,
                                            .prepare = prepare,
                                            .check_workspace = cuda_needs_no_workspace,
                                            .launch = launch,
                                            .launch_dq_of_ds = launch_dq_of_ds};
