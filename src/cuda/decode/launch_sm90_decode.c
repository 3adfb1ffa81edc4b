/*
 * A launch of SM90_DECODE or SM90_MLA enqueues the decode kernel, with tensor maps of K and V, then
 * the one that merges pieces.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/decode/merge_decode.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tensor_map.h"
#include "cuda/tma/tma_tensor.h"
#include "cuda/tuning.h"
#include "kernels/sm90/decode_kernel.h"

/* A warp merges a part of a row. */
static const decode_merge_t merge_of_many = {.kernel = flash_sm90_decode_combine,
                                             .parts_of_block = DECODE_COMBINE_WARPS};
/* A block merges a part of a row, which may have as many pieces as there are multiprocessors. */
static const decode_merge_t merge_of_few = {.kernel = flash_sm80_decode_combine,
                                            .parts_of_block = 1};

/* Chooses the merge by how many parts there are for the device, which batch-invariant calls must
 * not look at: the two add pieces in different orders. */
static const decode_merge_t *merge_of(const decode_plan_t *plan, const problem_t *problem,
                                      const device_t *device) {
    const bool is_few = plan->merge_parts <= MERGE_BLOCK_PARTS * (int64_t)device->n_multiprocessors;
    return is_few && !problem->batch_invariant ? &merge_of_few : &merge_of_many;
}

/* All kernels are loaded here, because loading is not allowed while a stream is captured. */
static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    FLASH_TRY(tensor_map_prepare());
    FLASH_TRY(cuda_prepare(kernel, problem, device));
    FLASH_TRY(merge_decode_prepare(&merge_of_few, device));
    return merge_decode_prepare(&merge_of_many, device);
}

static flash_status_t encode_maps(const flash_config_t *config, sm90_decode_params_t *params) {
    const flash_params_t *p = &params->cut.attention;
    const tma_tensor_t k = tma_tensor_k(config, p), v = tma_tensor_v(config, p);
    const tensor_map_box_t keys = {.rows = paging_sm90_box_keys(config, &params->paging),
                                   .heads = 1};
    params->entry_tokens =
        (sm90_entry_tokens_t){.k = (int32_t)k.entry_tokens, .v = (int32_t)v.entry_tokens};
    FLASH_TRY(tensor_map_encode(&k, config->dtype, keys, &params->k));
    return tensor_map_encode(&v, config->dtype, keys, &params->v);
}

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const flash_config_t *config = &kernel->config;
    const cuda_block_t block = kernel_op(kernel)->cuda->block(config);
    decode_plan_t plan = kernel_op(kernel)->cuda->plan(config, problem, device);
    plan.params.natural_bias = 1;
    plan.params.natural_scores = sm90_decode_leaves_natural_maxima(config);
    plan_decode_place(&plan, problem->workspace);
    const cuda_grid_t grid = {
        .blocks = plan.blocks, .threads = block.threads, .shared_bytes = block.shared_bytes};
    sm90_decode_params_t params = {
        .cut = plan.params, .paging = paging_sm90(config, &problem->params, DECODE_UNIT_KEYS)};
    FLASH_TRY(encode_maps(config, &params));
    FLASH_TRY(launch_grid(cuda_kernel_symbol(kernel), &grid, &params, stream));
    return merge_decode_enqueue(merge_of(&plan, problem, device), &plan, device, stream);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    FLASH_TRY(merge_decode_check_workspace(kernel, problem, device));
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

const family_calls_t sm90_decode_calls = {.workspace = merge_decode_workspace,
                                          .prepare = prepare,
                                          .check_workspace = merge_decode_check_workspace,
                                          .launch = launch};
