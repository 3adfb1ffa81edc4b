/*
 * A kernel of the SM90 family is launched with tensor maps of Q, K, V and O, and with a grid that
 * is as large as the device where blocks take tile after tile.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/grid.h"
#include "cuda/launch.h"
#include "cuda/paging_sm90.h"
#include "cuda/schedule_sm90.h"
#include "cuda/tensor_map.h"
#include "cuda/tma_tensor.h"

static flash_status_t encode_maps(const flash_config_t *config, sm90_params_t *params) {
    const flash_params_t *p = &params->problem;
    const tma_tensor_t q = tma_tensor_q(config, p), k = tma_tensor_k(config, p);
    const tma_tensor_t v = tma_tensor_v(config, p), o = tma_tensor_o(config, p);
    const int32_t box_keys = paging_sm90_box_keys(config, &params->paging);
    params->entry_tokens = (sm90_entry_tokens_t){(int32_t)q.entry_tokens, (int32_t)k.entry_tokens,
                                                 (int32_t)v.entry_tokens, (int32_t)o.entry_tokens};
    FLASH_TRY(tensor_map_encode(&q, p->q_dtype, sm90_q_box_rows(config), &params->q));
    FLASH_TRY(tensor_map_encode(&k, config->dtype, box_keys, &params->k));
    FLASH_TRY(tensor_map_encode(&v, config->dtype, box_keys, &params->v));
    return sm90_has_fp32_o(p) ? FLASH_SUCCESS
                              : tensor_map_encode(&o, p->o_dtype, SM90_WARPGROUP_ROWS, &params->o);
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const flash_config_t *config = &kernel->config;
    const flash_params_t *p = &problem->params;
    const int64_t blocks = schedule_sm90_blocks(config, p, device->n_multiprocessors);
    const cuda_block_t block = kernel->family->cuda->block(config);
    const cuda_grid_t grid = {
        .blocks = blocks, .threads = block.threads, .shared_bytes = block.shared_bytes};
    sm90_params_t params = {.problem = *p,
                            .schedule = schedule_sm90(config, p, blocks),
                            .paging = paging_sm90(config, p, config->B_c)};
    FLASH_TRY(encode_maps(config, &params));
    return launch_grid(cuda_kernel_symbol(kernel), &grid, &params, stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    FLASH_TRY(tensor_map_prepare());
    return cuda_prepare(kernel, problem, device);
}

const launch_ops_t sm90_forward_ops = {.workspace = cuda_no_workspace,
                                       .prepare = prepare,
                                       .check_workspace = cuda_needs_no_workspace,
                                       .launch = launch};
