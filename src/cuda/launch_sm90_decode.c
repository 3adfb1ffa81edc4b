/*
 * A launch of SM90_DECODE enqueues the decode kernel, with tensor maps of K and V, then the one
 * that merges pieces.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/grid.h"
#include "cuda/launch.h"
#include "cuda/merge_decode.h"
#include "cuda/paging_sm90.h"
#include "cuda/plan_sm90_decode.h"
#include "cuda/tensor_map.h"
#include "cuda/tma_tensor.h"
#include "kernels/sm90/decode_kernel.h"

static const decode_merge_t merge = {.kernel = flash_sm90_decode_combine,
                                     .rows_of_block = DECODE_COMBINE_WARPS};

/* Both kernels are loaded here, because loading is not allowed while a stream is captured. */
static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    FLASH_TRY(tensor_map_prepare());
    FLASH_TRY(cuda_prepare(kernel, problem, device));
    return merge_decode_prepare(&merge, device);
}

static flash_status_t encode_maps(const flash_config_t *config, sm90_decode_params_t *params) {
    const flash_params_t *p = &params->cut.attention;
    const tma_tensor_t k = tma_tensor_k(config, p), v = tma_tensor_v(config, p);
    const int32_t box_keys = paging_sm90_box_keys(config, &params->paging);
    params->entry_tokens =
        (sm90_entry_tokens_t){.k = (int32_t)k.entry_tokens, .v = (int32_t)v.entry_tokens};
    FLASH_TRY(tensor_map_encode(&k, config->dtype, box_keys, &params->k));
    return tensor_map_encode(&v, config->dtype, box_keys, &params->v);
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const flash_config_t *config = &kernel->config;
    const cuda_block_t block = kernel->family->cuda->block(config);
    decode_plan_t plan = plan_sm90_decode(config, problem, device);
    plan_sm80_decode_place(&plan, problem->workspace);
    const cuda_grid_t grid = {
        .blocks = plan.blocks, .threads = block.threads, .shared_bytes = block.shared_bytes};
    sm90_decode_params_t params = {
        .cut = plan.params, .paging = paging_sm90(config, &problem->params, DECODE_UNIT_KEYS)};
    FLASH_TRY(encode_maps(config, &params));
    FLASH_TRY(launch_grid(cuda_kernel_symbol(kernel), &grid, &params, stream));
    return merge_decode_enqueue(&merge, &plan, device, stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    FLASH_TRY(merge_decode_check_workspace(kernel, problem, device));
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

const launch_ops_t sm90_decode_ops = {.workspace = merge_decode_workspace,
                                      .prepare = prepare,
                                      .check_workspace = merge_decode_check_workspace,
                                      .launch = launch};
