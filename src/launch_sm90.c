/*
 * Launching a kernel of the SM90 family: tensor maps of Q, K and V, and a grid that is as large as
 * the device where blocks take tile after tile.
 */
#include "launch_families.h"

#include "cuda_block.h"
#include "status.h"
#include "tensor_map.h"
#include "tma_tensor.h"

/* K and V of the heads whose tiles are handed out together: what an L2 keeps beside Q and O. */
#define SECTION_BYTES ((int64_t)16 << 20)

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* A block per tile; persistent: one per multiprocessor, fewer where there are fewer tiles, more
 * where a block could not take its share. */
static int64_t grid_blocks(const flash_config_t *config, const flash_params_t *params,
                           const device_t *device) {
    const int64_t tiles = sm90_tiles(config, params);
    if (!config->persistent)
        return tiles;
    const int64_t device_blocks = least(device->n_multiprocessors, sm90_most_blocks(config));
    return most(least(device_blocks, tiles), sm90_least_blocks(config, params));
}

/* Query heads whose K and V fit the section, whole groups of them. */
static int32_t section_heads(const flash_params_t *p) {
    const int64_t all = (int64_t)p->batch * p->n_heads;
    const int64_t bytes_of_head = 2 * (int64_t)p->seqlen_k * p->d_head * SM90_ELEMENT_BYTES;
    if (all / p->group * bytes_of_head <= SECTION_BYTES)
        return (int32_t)all;
    return (int32_t)(most(SECTION_BYTES / bytes_of_head, 1) * p->group);
}

static flash_status_t encode_maps(const flash_config_t *config, sm90_params_t *params) {
    const flash_params_t *p = &params->problem;
    const tma_tensor_t q = tma_tensor_q(p), k = tma_tensor_k(p), v = tma_tensor_v(p);
    FLASH_TRY(tensor_map_encode(&q, config->dtype, config->B_r, &params->q));
    FLASH_TRY(tensor_map_encode(&k, config->dtype, config->B_c, &params->k));
    FLASH_TRY(tensor_map_encode(&v, config->dtype, config->B_c, &params->v));
    return FLASH_SUCCESS;
}

flash_status_t launch_sm90(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, const device_t *device,
                           flash_stream_t stream) {
    sm90_params_t params = {.problem = problem->params,
                            .section_heads = section_heads(&problem->params)};
    const cuda_block_t block = cuda_block(config);
    const cuda_grid_t grid = {.blocks = grid_blocks(config, &problem->params, device),
                              .threads = block.threads,
                              .shared_bytes = block.shared_bytes};
    FLASH_TRY(encode_maps(config, &params));
    return launch_grid(symbol, &grid, &params, stream);
}
