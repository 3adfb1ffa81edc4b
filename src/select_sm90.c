/*
 * How the rows of the SM90 family compare: by most strategies that always pay, then by least
 * estimated time.
 */
#include "select_families.h"

#include "sm90/sm90_kernel.h"

/* What the beginning and the end of a tile cost, in blocks of keys. */
enum { BLOCKS_AROUND_TILE = 2 };

/* What a block of keys costs beside its products, in rows of a tile. Under a mask it does not
 * count: tiles of more rows compute more there that no row sees. */
enum { ROWS_AROUND_BLOCK = 80 };

static int64_t block_time(const flash_config_t *config) {
    const bool masked = config->features & (FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW);
    return (int64_t)(config->B_r + (masked ? 0 : ROWS_AROUND_BLOCK)) * config->B_c;
}

/* Of the longest-working multiprocessor, in scores: blocks of keys are computed whole. */
static int64_t estimated_time(const flash_config_t *config, const problem_t *problem,
                              const device_t *device) {
    const int64_t n = device->n_multiprocessors;
    const int64_t rounds = (sm90_tiles(config, &problem->params) + n - 1) / n;
    const int64_t keys = select_visible_keys(&problem->params);
    const int64_t blocks = (keys + config->B_c - 1) / config->B_c + BLOCKS_AROUND_TILE;
    return rounds * blocks * block_time(config);
}

/* Of many rows against many keys, whatever the problem's lengths. */
static int64_t time_at_length(const flash_config_t *config) {
    enum { ROWS = 1 << 20 };
    return ROWS * block_time(config) / ((int64_t)config->B_r * config->B_c);
}

family_rank_t select_rank_sm90(const flash_config_t *config, const problem_t *problem,
                               const device_t *device) {
    const int32_t strategies = config->overlap + config->persistent + config->fixed_reference;
    return (family_rank_t){.without_strategies = -strategies,
                           .time = problem->batch_invariant
                                       ? time_at_length(config)
                                       : estimated_time(config, problem, device)};
}
