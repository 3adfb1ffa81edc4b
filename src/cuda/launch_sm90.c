/*
 * Launching a kernel of the SM90 family: tensor maps of Q, K, V and O, and a grid that is as large
 * as the device where blocks take tile after tile.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/grid.h"
#include "cuda/launch.h"
#include "cuda/schedule_sm90.h"
#include "cuda/tensor_map.h"
#include "cuda/tma_tensor.h"

static int32_t kv_box_rows(const flash_config_t *config, const flash_params_t *p) {
    return sm90_has_pages(config) ? sm90_piece_keys(config, p->pages.page_size) : config->B_c;
}

static sm90_paging_t paging_of(const flash_config_t *config, const flash_params_t *p) {
    if (!sm90_has_pages(config))
        return (sm90_paging_t){.piece_keys = 0};
    return (sm90_paging_t){.by_page_size = flash_divider(p->pages.page_size),
                           .piece_keys = sm90_piece_keys(config, p->pages.page_size)};
}

static flash_status_t encode_maps(const flash_config_t *config, sm90_params_t *params) {
    const flash_params_t *p = &params->problem;
    const tma_tensor_t q = tma_tensor_q(config, p), k = tma_tensor_k(config, p);
    const tma_tensor_t v = tma_tensor_v(config, p), o = tma_tensor_o(config, p);
    params->entry_tokens = (sm90_entry_tokens_t){(int32_t)q.entry_tokens, (int32_t)k.entry_tokens,
                                                 (int32_t)v.entry_tokens, (int32_t)o.entry_tokens};
    FLASH_TRY(tensor_map_encode(&q, p->q_dtype, sm90_q_box_rows(config), &params->q));
    FLASH_TRY(tensor_map_encode(&k, config->dtype, kv_box_rows(config, p), &params->k));
    FLASH_TRY(tensor_map_encode(&v, config->dtype, kv_box_rows(config, p), &params->v));
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
                            .paging = paging_of(config, p)};
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
