/*
 * This kernel finds out what a mask does to each block of keys of each tile, so that an SM90 kernel
 * behind it can leave out what is hidden, and the mask where it changes nothing. A warp looks at a
 * block of keys, or a lane does (mask_blocks_kernel.h). Blocks that no row of the tile sees,
 * whatever the mask is, are never asked for.
 */
#include "common/mask_effect.cuh"
#include "sm90/mask_blocks_kernel.h"

constexpr int32_t warp_lanes = 32;

/* This says which block of keys of which tile a warp looks at. */
typedef struct mask_block {
    int32_t entry;
    int32_t head;
    int32_t tile;
    int32_t block;
} mask_block_t;

static __device__ __forceinline__ mask_block_t find_block(const flash_bias_t &bias) {
    const flash_mask_blocks_t &m = bias.blocks;
    const uint32_t per_tile = sm90_mask_blocks_per_tile(&bias),
                   lanes = sm90_mask_blocks_lanes(&bias);
    const uint32_t tile = blockIdx.x / per_tile, head = tile / m.tiles;
    mask_block_t found;
    found.block = (int32_t)((blockIdx.x % per_tile * blockDim.x + threadIdx.x) / lanes);
    found.tile = (int32_t)(tile % m.tiles);
    found.head = (int32_t)(head % m.heads);
    found.entry = (int32_t)(head / m.heads);
    return found;
}

/* Returns the keys that any of these rows sees but for the mask. */
static __device__ __forceinline__ flash_range_t keys_of_rows(const flash_params_t &p,
                                                             const flash_sequence_t &s,
                                                             int32_t first_row, int32_t rows) {
    return flash_range_t{flash_visible_keys(&p, &s, first_row).begin,
                         flash_visible_keys(&p, &s, first_row + rows - 1).end};
}

static __device__ __forceinline__ int effect_on(const flash_bias_t &bias,
                                                const flash_bias_row_t &row, int32_t query,
                                                int32_t rows, const flash_range_t &keys) {
    constexpr int few = SM90_MASK_BLOCKS_MOST_KEYS / 2;
    return keys.end - keys.begin <= few
               ? mask_effect<few>(bias, row, query, rows, keys)
               : mask_effect<SM90_MASK_BLOCKS_MOST_KEYS>(bias, row, query, rows, keys);
}

extern "C" __global__ void __launch_bounds__(SM90_MASK_BLOCKS_WARPS *warp_lanes)
    flash_sm90_mask_blocks(const __grid_constant__ sm90_mask_blocks_params_t params) {
    const flash_params_t &p = params.problem;
    const flash_mask_blocks_t &m = p.bias.blocks;
    const mask_block_t at = find_block(p.bias);
    const flash_sequence_t s = flash_sequence(&p, at.entry);
    const int32_t first_row = at.tile * params.B_r, rows = min(params.B_r, s.len_q - first_row);
    if (rows <= 0 || at.block >= m.blocks)
        return;
    const flash_range_t seen = keys_of_rows(p, s, first_row, rows);
    const int32_t key = at.block * params.B_c;
    const flash_range_t keys = {key, min(key + params.B_c, s.len_k)};
    if (keys.begin >= seen.end || keys.end <= seen.begin)
        return;
    const flash_bias_row_t row = flash_bias_row(&p, &s, at.entry, at.head, first_row);
    const int effect = effect_on(p.bias, row, first_row, rows, keys);
    if (threadIdx.x % sm90_mask_blocks_lanes(&p.bias) == 0)
        m.effects[flash_mask_blocks_at(&m, at.entry, at.head, at.tile) + at.block] =
            (uint8_t)effect;
}
