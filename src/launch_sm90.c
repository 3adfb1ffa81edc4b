/*
 * Launching a kernel of the SM90 family: tensor maps of Q, K, V and O, and a grid that is as large
 * as the device where blocks take tile after tile.
 */
#include "launch_families.h"

#include "cuda_block.h"
#include "launch_grid.h"
#include "status.h"
#include "tensor_map.h"
#include "tma_tensor.h"

/* Of the heads whose tiles are handed out together: K and V, which an L2 keeps beside Q and O; and
 * tiles, enough to even out their lengths, even if K and V then are more. */
#define SECTION_BYTES ((int64_t)16 << 20)
#define SECTION_TILES 256

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* A block per tile; persistent: one per multiprocessor, but for whole clusters, and fewer where
 * there are fewer tiles. */
static int64_t grid_blocks(const flash_config_t *config, int64_t tiles, const device_t *device) {
    if (!config->persistent)
        return tiles;
    const int32_t cluster = sm90_cluster_blocks(config);
    const int64_t on_device = device->n_multiprocessors / cluster * cluster;
    return least(least(on_device, sm90_most_blocks(config)), tiles);
}

/* Query heads of a section: whole groups. */
static int32_t section_heads(const flash_config_t *config, const flash_params_t *p) {
    const int64_t groups = (sm90_has_varlen(config) ? 1 : p->batch) * (int64_t)p->n_heads_kv;
    const int64_t bytes_of_group = 2 * (int64_t)p->seqlen_k * p->d_head * SM90_ELEMENT_BYTES;
    const int64_t tiles_of_group = sm90_tiles_of_head(config, p->seqlen_q) * p->group;
    const int64_t fitting = SECTION_BYTES / most(bytes_of_group, 1);
    const int64_t enough = (SECTION_TILES + tiles_of_group - 1) / tiles_of_group;
    return (int32_t)(least(most(fitting, enough), groups) * p->group);
}

/* As long as every block has several times as many, if the sequences are as long as they may be. */
static int32_t tiles_together(int64_t tiles, int64_t blocks) {
    const int64_t several = tiles / (4 * blocks);
    return several >= 4 ? 4 : several >= 2 ? 2 : 1;
}

static flash_status_t encode_maps(const flash_config_t *config, sm90_params_t *params) {
    const flash_params_t *p = &params->problem;
    const bool ragged = sm90_has_varlen(config);
    const tma_tensor_t q = tma_tensor_q(p, ragged), k = tma_tensor_k(p, ragged);
    const tma_tensor_t v = tma_tensor_v(p, ragged), o = tma_tensor_o(p, ragged);
    params->entry_tokens = (sm90_entry_tokens_t){(int32_t)q.entry_tokens, (int32_t)k.entry_tokens,
                                                 (int32_t)v.entry_tokens, (int32_t)o.entry_tokens};
    FLASH_TRY(tensor_map_encode(&q, config->dtype, config->B_r, &params->q));
    FLASH_TRY(tensor_map_encode(&k, config->dtype, sm90_box_rows(config), &params->k));
    FLASH_TRY(tensor_map_encode(&v, config->dtype, sm90_box_rows(config), &params->v));
    FLASH_TRY(tensor_map_encode(&o, config->dtype, SM90_WARPGROUP_ROWS, &params->o));
    return FLASH_SUCCESS;
}

flash_status_t launch_sm90(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, const device_t *device,
                           flash_stream_t stream) {
    const int64_t tiles = sm90_tiles(config, &problem->params);
    const int64_t blocks = grid_blocks(config, tiles, device);
    const cuda_block_t block = cuda_block(config);
    const cuda_grid_t grid = {
        .blocks = blocks, .threads = block.threads, .shared_bytes = block.shared_bytes};
    sm90_params_t params = {.problem = problem->params,
                            .section_heads = section_heads(config, &problem->params),
                            .tiles_together = tiles_together(tiles, blocks)};
    FLASH_TRY(encode_maps(config, &params));
    return launch_grid(symbol, &grid, &params, stream);
}
