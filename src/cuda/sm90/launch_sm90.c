/*
 * A kernel of the SM90 family is launched with tensor maps of Q, K, V and O, and with a grid that
 * is as large as the device where blocks take tile after tile. If the call has a mask, a kernel
 * that looks at it comes first; if it multiplies e4m3, one that transposes V.
 */
#include "config/kernel_table.h"
#include "core/status.h"
#include "cuda/runtime/error.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/scope.h"
#include "cuda/sm90/mask_blocks_sm90.h"
#include "cuda/sm90/schedule_sm90.h"
#include "cuda/sm90/transpose_v_sm90.h"
#include "cuda/tma/paging_sm90.h"
#include "cuda/tma/tensor_map.h"
#include "cuda/tma/tma_tensor.h"
#include "kernels/sm90/mask_blocks_kernel.h"
#include "kernels/sm90/transpose_v_kernel.h"

/* transposed: V where the kernel reads it so, or NULL. */
static flash_status_t encode_v(const flash_config_t *config, const void *transposed,
                               tensor_map_box_t keys, sm90_params_t *params) {
    const flash_params_t *p = &params->problem;
    if (transposed == NULL) {
        const tma_tensor_t v = tma_tensor_v(config, p);
        return tensor_map_encode(&v, config->dtype, keys, &params->v);
    }
    const tma_tensor_t v = transpose_v_sm90_tensor(p, transposed);
    const tensor_map_box_t box = {.rows = sm90_d_head_v(config), .heads = 1};
    return tensor_map_encode(&v, config->dtype, box, &params->v);
}

static flash_status_t encode_maps(const flash_config_t *config, const void *transposed,
                                  sm90_params_t *params) {
    const flash_params_t *p = &params->problem;
    const tma_tensor_t q = tma_tensor_q(config, p), k = tma_tensor_k(config, p);
    const tma_tensor_t v = tma_tensor_v(config, p), o = tma_tensor_o(config, p);
    const int32_t shift = sm90_pack_shift(config, p);
    const tensor_map_box_t queries = {.rows = sm90_q_box_rows(config) >> shift,
                                      .heads = 1 << shift};
    const tensor_map_box_t outputs = {.rows = SM90_WARPGROUP_ROWS >> shift, .heads = 1 << shift};
    const tensor_map_box_t keys = {.rows = paging_sm90_box_keys(config, &params->paging),
                                   .heads = 1};
    params->entry_tokens = (sm90_entry_tokens_t){(int32_t)q.entry_tokens, (int32_t)k.entry_tokens,
                                                 (int32_t)v.entry_tokens, (int32_t)o.entry_tokens};
    FLASH_TRY(tensor_map_encode(&q, p->q_dtype, queries, &params->q));
    FLASH_TRY(tensor_map_encode(&k, config->dtype, keys, &params->k));
    FLASH_TRY(encode_v(config, transposed, keys, params));
    return sm90_has_fp32_o(p) ? FLASH_SUCCESS
                              : tensor_map_encode(&o, p->o_dtype, outputs, &params->o);
}

/* ---- The kernel that looks at the mask ---- */

static const void *mask_blocks_symbol(void) {
    union {
        void (*function)(sm90_mask_blocks_params_t);
        const void *symbol;
    } u = {.function = flash_sm90_mask_blocks};
    return u.symbol;
}

/* Enqueues the kernel if it pays, and tells the parameters of the one behind it. */
static flash_status_t enqueue_mask_blocks(const flash_config_t *config, void *workspace,
                                          flash_params_t *params, flash_stream_t stream) {
    const flash_mask_blocks_t found = mask_blocks_sm90(config, params);
    if (found.blocks == 0)
        return FLASH_SUCCESS;
    params->bias.blocks = found;
    params->bias.blocks.effects = workspace;
    const sm90_mask_blocks_params_t own = {
        .problem = *params, .B_r = config->B_r, .B_c = config->B_c};
    const cuda_grid_t grid = {.blocks = sm90_mask_blocks_grid(&params->bias),
                              .threads = SM90_MASK_BLOCKS_WARPS * 32};
    return launch_grid(mask_blocks_symbol(), &grid, &own, stream);
}

/* ---- The kernel that transposes V ---- */

static const void *transpose_v_symbol(void) {
    union {
        void (*function)(sm90_transpose_params_t);
        const void *symbol;
    } u = {.function = flash_sm90_transpose_v};
    return u.symbol;
}

static flash_status_t enqueue_transpose_v(const flash_params_t *params, void *transposed,
                                          flash_stream_t stream) {
    const sm90_transpose_params_t own = {.problem = *params, .transposed = transposed};
    const cuda_grid_t grid = {.blocks = sm90_transpose_grid(params),
                              .threads = SM90_TRANSPOSE_THREADS};
    return launch_grid(transpose_v_symbol(), &grid, &own, stream);
}

/* ---- Launch ---- */

static flash_status_t enqueue(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device, flash_stream_t stream) {
    const flash_config_t *config = &kernel->config;
    const flash_params_t p = schedule_sm90_problem(config, &problem->params);
    const int64_t blocks = schedule_sm90_blocks(config, &p, device->n_multiprocessors);
    const cuda_block_t block = kernel_op(kernel)->cuda->block(config);
    const bool transposes = transpose_v_sm90_workspace(config, &p) > 0;
    void *transposed = transposes ? transpose_v_sm90_place(problem->workspace) : NULL;
    const cuda_grid_t grid = {.blocks = blocks,
                              .threads = block.threads,
                              .shared_bytes = block.shared_bytes,
                              .is_dependent = transposes};
    sm90_params_t params = {.problem = p,
                            .schedule = schedule_sm90(config, &p, blocks),
                            .paging = paging_sm90(config, &p, config->B_c)};
    FLASH_TRY(encode_maps(config, transposed, &params));
    if (transposes)
        FLASH_TRY(enqueue_transpose_v(&p, transposed, stream));
    FLASH_TRY(enqueue_mask_blocks(config, problem->workspace, &params.problem, stream));
    return launch_grid(cuda_kernel_symbol(kernel), &grid, &params, stream);
}

static flash_status_t workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size) {
    (void)device;
    *size = mask_blocks_sm90_workspace(&kernel->config, &problem->params) +
            transpose_v_sm90_workspace(&kernel->config, &problem->params);
    return FLASH_SUCCESS;
}

static flash_status_t check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device) {
    uint64_t size;
    FLASH_TRY(workspace(kernel, problem, device, &size));
    return cuda_require_workspace(kernel, problem, size);
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    FLASH_TRY(check_workspace(kernel, problem, device));
    return cuda_launch(kernel, problem, device, stream, enqueue);
}

static flash_status_t load_kernels_ahead(void) {
    struct cudaFuncAttributes attributes;
    FLASH_TRY_CUDA(cudaFuncGetAttributes(&attributes, mask_blocks_symbol()));
    FLASH_TRY_CUDA(cudaFuncGetAttributes(&attributes, transpose_v_symbol()));
    return FLASH_SUCCESS;
}

static flash_status_t prepare_kernels_ahead(const device_t *device) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = load_kernels_ahead();
    cuda_scope_leave(&scope);
    return status;
}

static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    FLASH_TRY(tensor_map_prepare());
    FLASH_TRY(prepare_kernels_ahead(device));
    return cuda_prepare(kernel, problem, device);
}

const family_calls_t sm90_forward_calls = {.workspace = workspace,
                                           .prepare = prepare,
                                           .check_workspace = check_workspace,
                                           .launch = launch};
