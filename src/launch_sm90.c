/*
 * Launching a kernel of the SM90 family: tensor maps of Q, K, V and O, a grid that is as large as
 * the device where blocks take tile after tile, and several launches for a batch of more tiles than
 * one can take.
 */
#include "launch_families.h"

#include "cuda_block.h"
#include "launch_grid.h"
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

/* A block per tile; persistent: one per multiprocessor, but for whole clusters, fewer where there
 * are fewer tiles, more where a block could not take its share. */
static int64_t grid_blocks(const flash_config_t *config, const flash_params_t *params,
                           const device_t *device) {
    const int64_t tiles = sm90_tiles(config, params);
    if (!config->persistent)
        return tiles;
    const int32_t cluster = sm90_cluster_blocks(config);
    const int64_t on_device = device->n_multiprocessors / cluster * cluster;
    const int64_t device_blocks = least(on_device, sm90_most_blocks(config));
    return most(least(device_blocks, tiles), sm90_least_blocks(config, params));
}

/* Query heads whose K and V fit the section, whole groups of them. */
static int32_t section_heads(const flash_config_t *config, const flash_params_t *p) {
    const int64_t entries = sm90_has_varlen(config) ? 1 : p->batch;
    const int64_t bytes_of_head = 2 * (int64_t)p->seqlen_k * p->d_head * SM90_ELEMENT_BYTES;
    if (entries * p->n_heads_kv * bytes_of_head <= SECTION_BYTES)
        return (int32_t)(entries * p->n_heads);
    return (int32_t)(most(SECTION_BYTES / bytes_of_head, 1) * p->group);
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

static flash_status_t launch(const void *symbol, const flash_config_t *config,
                             const flash_params_t *problem, const device_t *device,
                             flash_stream_t stream) {
    const int64_t blocks = grid_blocks(config, problem, device);
    const cuda_block_t block = cuda_block(config);
    const cuda_grid_t grid = {
        .blocks = blocks, .threads = block.threads, .shared_bytes = block.shared_bytes};
    sm90_params_t params = {.problem = *problem,
                            .section_heads = section_heads(config, problem),
                            .tiles_together = tiles_together(sm90_tiles(config, problem), blocks)};
    FLASH_TRY(encode_maps(config, &params));
    return launch_grid(symbol, &grid, &params, stream);
}

/* The problem of `count` batch entries from `first` on. */
static flash_params_t part_of_batch(const flash_params_t *p, int32_t first, int32_t count) {
    flash_params_t part = *p;
    part.batch = count;
    part.q = (const uint16_t *)p->q + first * p->q_stride.batch;
    part.k = (const uint16_t *)p->k + first * p->k_stride.batch;
    part.v = (const uint16_t *)p->v + first * p->v_stride.batch;
    part.o = (uint16_t *)p->o + first * p->o_stride.batch;
    if (p->lse != NULL)
        part.lse = p->lse + (int64_t)first * p->n_heads * p->seqlen_q;
    return part;
}

flash_status_t launch_sm90(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, const device_t *device,
                           flash_stream_t stream) {
    const flash_params_t *p = &problem->params;
    const int64_t entries = sm90_most_tiles(config) / sm90_tiles_of_entry(config, p);
    for (int64_t first = 0; first < p->batch; first += entries) {
        const int64_t count = least(entries, p->batch - first);
        const flash_params_t part = part_of_batch(p, (int32_t)first, (int32_t)count);
        FLASH_TRY(launch(symbol, config, &part, device, stream));
    }
    return FLASH_SUCCESS;
}
