/*
 * The host decides of the SM90 schedule which query heads share tiles, how many blocks a launch
 * has, how many heads make a section, and which heads go whole to teams of blocks. Sections and
 * teams are so small that K and V of their heads fit L2. An L2 has two halves, each of which serves
 * half of the multiprocessors and reads what the other holds over a link between them; what a
 * single team reads crosses the link once. At 512 keys under a causal mask the link is what tiles
 * wait for.
 */
#include "cuda/sm90/schedule_sm90.h"

#include "core/int64.h"
#include "cuda/tuning.h"

#include <stdbool.h>

/* Returns how many keys a tile sees at most. */
static int64_t most_seen(const flash_config_t *config, const flash_params_t *p) {
    const int64_t queries = config->B_r >> sm90_pack_shift(config, p);
    if (p->window_left < 0 || p->window_right < 0)
        return p->seqlen_k;
    return min64(p->seqlen_k, (int64_t)p->window_left + p->window_right + queries);
}

/* Says whether heads should share tiles: in ragged batches, whose sequences may be short, and where
 * a window hides much of what a tile of one head would compute. */
static bool shares_tiles(const flash_config_t *config, const flash_params_t *p) {
    const bool has_narrow_window = p->window_left >= 0 && p->window_right >= 0 &&
                                   (int64_t)p->window_left + p->window_right < 2 * config->B_r;
    return sm90_packs_heads(config) && (sm90_has_varlen(config) || has_narrow_window);
}

static int32_t most_pack_shift(const flash_params_t *p) {
    int32_t shift = 0;
    while (shift < SM90_MOST_PACK_SHIFT && (p->group >> shift) % 2 == 0)
        shift++;
    return shift;
}

int32_t schedule_sm90_most_sharing(const flash_params_t *p) {
    return 1 << most_pack_shift(p);
}

int32_t schedule_sm90_pack_shift(const flash_config_t *config, const flash_params_t *p) {
    return shares_tiles(config, p) ? most_pack_shift(p) : 0;
}

flash_params_t schedule_sm90_problem(const flash_config_t *config, const flash_params_t *p) {
    flash_params_t packed = *p;
    packed.pack_shift = schedule_sm90_pack_shift(config, p);
    return packed;
}

/* A copy of the problem for sm90_tiles() would cost more than to count, for each row in question.
 */
int64_t schedule_sm90_tiles(const flash_config_t *config, const flash_params_t *p) {
    const int32_t shift = schedule_sm90_pack_shift(config, p);
    return divide_up((int64_t)p->seqlen_q << shift, config->B_r) * (p->n_heads >> shift) * p->batch;
}

int64_t schedule_sm90_blocks(const flash_config_t *config, const flash_params_t *p,
                             int32_t n_multiprocessors) {
    const int64_t tiles = sm90_tiles(config, p);
    if (!config->persistent)
        return tiles;
    return min64(min64(n_multiprocessors, sm90_max_blocks(config)), tiles);
}

/* The heads of a group. */
static int32_t group_heads(const flash_config_t *config, const flash_params_t *p) {
    return p->group >> sm90_pack_shift(config, p);
}

/* The bytes of K and V of one K/V head. */
static int64_t bytes_of_group(const flash_config_t *config, const flash_params_t *p) {
    return (int64_t)p->seqlen_k * ((int64_t)p->d_head + p->d_head_v) *
           sm90_kv_element_bytes(config);
}

/* The heads of a section: whole groups, as many as fit L2, or more to have enough tiles. */
static int32_t section_heads(const flash_config_t *config, const flash_params_t *p) {
    const int64_t groups = (sm90_has_varlen(config) ? 1 : p->batch) * (int64_t)p->n_heads_kv;
    const int64_t tiles_of_group = sm90_tiles_of_entry(config, p, p->seqlen_q) / p->n_heads_kv;
    const int64_t fitting = SM90_SECTION_MAX_BYTES / max64(bytes_of_group(config, p), 1);
    const int64_t enough = divide_up(SM90_SECTION_MIN_TILES, tiles_of_group);
    return (int32_t)(min64(max64(fitting, enough), groups) * group_heads(config, p));
}

/* The blocks of a team, 0 for no teams. Larger teams have fewer heads in L2 at a time: the smallest
 * team is taken whose heads fit SM90_TEAM_MAX_BYTES, or else the largest whose heads take at most
 * twice as much. In a head each block has one tile, or two and more, long ones and short ones. */
static int32_t team_blocks(const flash_config_t *config, const flash_params_t *p, int64_t blocks) {
    const int64_t tiles = sm90_tiles_of_head(config, p, p->seqlen_q);
    int32_t fitting = 0;
    for (int32_t n = 1; n <= SM90_TEAM_MAX_BLOCKS && blocks % n == 0; n *= 2) {
        const int64_t bytes = blocks / n * bytes_of_group(config, p) / group_heads(config, p);
        if (n > 1 && n != tiles && 2 * n > tiles)
            break;
        if (bytes <= SM90_TEAM_MAX_BYTES)
            return n;
        if (bytes <= 2 * SM90_TEAM_MAX_BYTES)
            fitting = n;
    }
    return fitting;
}

/* Returns the number of heads after which all blocks of a team have done the same work: two where
 * each block takes one tile of a head, a long one of the first and a short one of the second. */
static int64_t heads_alike(const flash_config_t *config, const flash_params_t *p, int32_t blocks) {
    return blocks > 1 && blocks == sm90_tiles_of_head(config, p, p->seqlen_q) ? 2 : 1;
}

/* The tiles of a bundle, at most: so few that every block has several bundles if all sequences are
 * as long as the longest. */
static int32_t bundle_tiles(int64_t tiles, int64_t blocks) {
    const int64_t several = tiles / (SM90_BLOCK_MIN_BUNDLES * blocks);
    return several >= SM90_MANY_TILES ? 8 : several >= 4 ? 4 : several >= 2 ? 2 : 1;
}

/* Says whether tiles take about as long as each other, so that to rank blocks by their work would
 * take longer than it saves. In a ragged batch all tiles have few blocks of keys, and may have more
 * where a block has one tile or two, or where heads share tiles. In other batches nearly all tiles
 * see a narrow window, all of it. */
static bool is_even(const flash_config_t *config, const flash_params_t *p, int64_t blocks) {
    const int64_t seen = most_seen(config, p);
    const bool has_few_tiles = sm90_tiles(config, p) <= 2 * blocks;
    if (!sm90_has_varlen(config))
        return seen <= min64(p->seqlen_k / SM90_EVEN_WINDOW_PARTS, SM90_EVEN_BLOCKS * config->B_c);
    const bool may_have_more = has_few_tiles || sm90_pack_shift(config, p) > 0;
    return seen <= (may_have_more ? SM90_EVEN_BLOCKS : SM90_EVEN_RAGGED_BLOCKS) * config->B_c;
}

/* Heads go whole to teams only under a mask: without one, tiles that follow each other read the
 * same keys at the same time. */
static bool has_teams(const flash_config_t *config, const flash_params_t *p) {
    const bool hides_keys = p->window_left >= 0 || p->window_right >= 0 || p->attention_chunk > 0;
    return config->longest_first && !sm90_has_varlen(config) && hides_keys;
}

sm90_schedule_t schedule_sm90(const flash_config_t *config, const flash_params_t *p,
                              int64_t blocks) {
    sm90_schedule_t schedule = {.team_blocks = 1,
                                .section_heads = section_heads(config, p),
                                .bundle_tiles = bundle_tiles(sm90_tiles(config, p), blocks),
                                .is_even = is_even(config, p, blocks)};
    const int32_t n = has_teams(config, p) ? team_blocks(config, p, blocks) : 0;
    if (n > 0) {
        const int64_t heads = (int64_t)p->batch * sm90_heads(config, p);
        const int64_t together = blocks / n * heads_alike(config, p, n);
        schedule.team_blocks = n;
        schedule.whole_heads = (int32_t)(heads / together * together);
    }
    return schedule;
}
