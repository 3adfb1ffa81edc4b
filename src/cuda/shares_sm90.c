/*
 * Sections and teams keep what they read of K and V in L2. An L2 has two halves, each of which
 * serves half of the multiprocessors and reads what the other holds over a link between them; what
 * a single team reads crosses it once. At 512 keys under a causal mask the link is what tiles wait
 * for.
 */
#include "cuda/shares_sm90.h"

#include <stdbool.h>

#define MIB ((int64_t)1 << 20)

enum {
    SECTION_TILES = 256, /* enough to even out their lengths, even if K and V then are more */
    MOST_TEAM_BLOCKS = 4
};

/* K and V of the heads that are computed at the same time, beside which L2 keeps Q and O. */
#define SECTION_BYTES (16 * MIB)
#define TEAM_BYTES    (20 * MIB)

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

int64_t shares_sm90_blocks(const flash_config_t *config, const flash_params_t *p,
                           int32_t n_multiprocessors) {
    const int64_t tiles = sm90_tiles(config, p);
    if (!config->persistent)
        return tiles;
    return least(least(n_multiprocessors, sm90_most_blocks(config)), tiles);
}

/* Of one K/V head. */
static int64_t bytes_of_group(const flash_params_t *p) {
    return 2 * (int64_t)p->seqlen_k * p->d_head * SM90_ELEMENT_BYTES;
}

/* Whole groups. */
static int32_t section_heads(const flash_config_t *config, const flash_params_t *p) {
    const int64_t groups = (sm90_has_varlen(config) ? 1 : p->batch) * (int64_t)p->n_heads_kv;
    const int64_t tiles_of_group = sm90_tiles_of_head(config, p->seqlen_q) * p->group;
    const int64_t fitting = SECTION_BYTES / most(bytes_of_group(p), 1);
    const int64_t enough = (SECTION_TILES + tiles_of_group - 1) / tiles_of_group;
    return (int32_t)(least(most(fitting, enough), groups) * p->group);
}

/* The fewest whose heads fit; else the most whose heads are at most twice as much. 0: none. Each
 * block of a team has a tile of each head, or two and more, long ones and short ones. */
static int32_t team_blocks(const flash_config_t *config, const flash_params_t *p, int64_t blocks) {
    const int64_t tiles = sm90_tiles_of_head(config, p->seqlen_q);
    int32_t fitting = 0;
    for (int32_t n = 1; n <= MOST_TEAM_BLOCKS && blocks % n == 0; n *= 2) {
        const int64_t bytes = blocks / n * bytes_of_group(p) / p->group;
        if (n > 1 && n != tiles && 2 * n > tiles)
            break;
        if (bytes <= TEAM_BYTES)
            return n;
        if (bytes <= 2 * TEAM_BYTES)
            fitting = n;
    }
    return fitting;
}

/* Heads after which the blocks of a team have had as much work: where each takes one tile of a
 * head, that of the next makes up for it. */
static int64_t heads_alike(const flash_config_t *config, const flash_params_t *p, int32_t blocks) {
    return blocks > 1 && blocks == sm90_tiles_of_head(config, p->seqlen_q) ? 2 : 1;
}

/* As long as every block has several times as many, if the sequences are as long as they may be. */
static int32_t tiles_together(int64_t tiles, int64_t blocks) {
    const int64_t several = tiles / (4 * blocks);
    return several >= 4 ? 4 : several >= 2 ? 2 : 1;
}

/* Not where no key is hidden: there tiles that follow each other read the same keys at once. */
static bool has_teams(const flash_config_t *config, const flash_params_t *p) {
    const bool hides_keys = p->window_left >= 0 || p->window_right >= 0;
    return config->longest_first && !sm90_has_varlen(config) && hides_keys;
}

sm90_shares_t shares_sm90(const flash_config_t *config, const flash_params_t *p, int64_t blocks) {
    sm90_shares_t shares = {.team_blocks = 1,
                            .section_heads = section_heads(config, p),
                            .tiles_together = tiles_together(sm90_tiles(config, p), blocks)};
    const int32_t n = has_teams(config, p) ? team_blocks(config, p, blocks) : 0;
    if (n > 0) {
        const int64_t heads = (int64_t)p->batch * p->n_heads;
        const int64_t together = blocks / n * heads_alike(config, p, n);
        shares.team_blocks = n;
        shares.whole_heads = (int32_t)(heads / together * together);
    }
    return shares;
}
