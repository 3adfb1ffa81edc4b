/*
 * A launch of the SM90 family decides about its schedule: the grid, sections and teams.
 */
#include "cuda/sm90/schedule_sm90.h"
#include "support.h"

#include <stdbool.h>

enum { MULTIPROCESSORS = 132, TOKENS = 16384, WIDTH = 2048, MOST_BLOCKS = 4, MOST_TILES = 64 };

static flash_config_t causal_row(int32_t d_head, int32_t features) {
    return (flash_config_t){.arch = FLASH_ARCH_SM90,
                            .dtype = FLASH_DTYPE_BF16,
                            .d_head = d_head,
                            .d_head_v = d_head,
                            .B_r = 128,
                            .B_c = d_head == 256 ? 64 : 128,
                            .n_warps = 12,
                            .n_stages = 2,
                            .persistent = 1,
                            .longest_first = 1,
                            .features = features};
}

/* Makes a causal problem. */
static flash_params_t square(int32_t d_head, int32_t batch, int32_t heads, int32_t group,
                             int32_t length) {
    return (flash_params_t){.batch = batch,
                            .seqlen_q = length,
                            .seqlen_k = length,
                            .n_heads = heads,
                            .n_heads_kv = heads / group,
                            .group = group,
                            .d_head = d_head,
                            .d_head_v = d_head,
                            .window_left = -1};
}

static sm90_schedule_t schedule_of(const flash_config_t *config, const flash_params_t *p) {
    return schedule_sm90(config, p, schedule_sm90_blocks(config, p, MULTIPROCESSORS));
}

/* Returns the blocks per team for this length, with the usual number of tokens and heads. */
static int32_t team_at(int32_t d_head, int32_t length) {
    const flash_config_t config = causal_row(d_head, FLASH_FEATURE_CAUSAL);
    const flash_params_t p = square(d_head, TOKENS / length, WIDTH / d_head, 1, length);
    const sm90_schedule_t schedule = schedule_of(&config, &p);
    return schedule.whole_heads == 0 ? 0 : schedule.team_blocks;
}

TEST(teams_grow_with_the_keys_until_they_do_not_fit) {
    assert_int_equal(team_at(64, 512), 1);
    assert_int_equal(team_at(64, 1024), 2);
    assert_int_equal(team_at(64, 4096), 4);
    assert_int_equal(team_at(64, 8192), 0);
    assert_int_equal(team_at(128, 512), 2);
    assert_int_equal(team_at(128, 1024), 4);
    assert_int_equal(team_at(128, 4096), 0);
    assert_int_equal(team_at(256, 512), 4);
    assert_int_equal(team_at(256, 1024), 4);
    assert_int_equal(team_at(256, 2048), 0);
}

TEST(every_team_takes_as_many_heads) {
    const flash_config_t config = causal_row(128, FLASH_FEATURE_CAUSAL);
    for (int32_t heads = 4; heads <= 400; heads += 4) {
        const flash_params_t p = square(128, 1, heads, 4, 700);
        const sm90_schedule_t schedule = schedule_of(&config, &p);
        const int64_t blocks = schedule_sm90_blocks(&config, &p, MULTIPROCESSORS);
        const int64_t teams = blocks / schedule.team_blocks;
        assert_int_equal(blocks % schedule.team_blocks, 0);
        assert_int_equal(schedule.whole_heads % teams, 0);
        assert_in_range(schedule.whole_heads, 0, heads);
        assert_in_range(schedule.section_heads, 4, heads);
        assert_int_equal(schedule.section_heads % 4, 0);
    }
}

/* Otherwise some blocks would have all the long tiles. */
TEST(blocks_of_one_tile_a_head_take_heads_in_pairs) {
    const flash_config_t config = causal_row(256, FLASH_FEATURE_CAUSAL);
    for (int32_t batch = 1; batch <= 40; batch++) {
        const flash_params_t p = square(256, batch, 8, 1, 512);
        const sm90_schedule_t schedule = schedule_of(&config, &p);
        const int64_t blocks = schedule_sm90_blocks(&config, &p, MULTIPROCESSORS);
        if (schedule.team_blocks == 4)
            assert_int_equal(schedule.whole_heads % (2 * blocks / 4), 0);
    }
}

TEST(ragged_batches_have_no_teams) {
    const flash_config_t config = causal_row(64, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN);
    const flash_params_t p = square(64, 32, 32, 1, 512);
    assert_int_equal(schedule_of(&config, &p).whole_heads, 0);
}

TEST(full_attention_has_no_teams) {
    const flash_config_t config = causal_row(64, FLASH_FEATURE_CAUSAL);
    flash_params_t p = square(64, 32, 32, 1, 512);
    p.window_right = -1;
    assert_int_equal(schedule_of(&config, &p).whole_heads, 0);
}

static int32_t heads_of_tile(int32_t features, int32_t group, int32_t window_left) {
    const flash_config_t config = causal_row(64, features);
    flash_params_t p = square(64, 4, 48, group, 4096);
    p.window_left = window_left;
    const int64_t tiles = schedule_sm90_tiles(&config, &p);
    p = schedule_sm90_problem(&config, &p);
    assert_int_equal(tiles, sm90_tiles(&config, &p));
    return 1 << sm90_pack_shift(&config, &p);
}

TEST(heads_share_tiles_in_ragged_batches_and_narrow_windows) {
    const int32_t ragged = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN;
    const int32_t window = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW;
    assert_int_equal(heads_of_tile(ragged, 1, -1), 1);
    assert_int_equal(heads_of_tile(ragged, 3, -1), 1);
    assert_int_equal(heads_of_tile(ragged, 6, -1), 2);
    assert_int_equal(heads_of_tile(ragged, 8, -1), 4);
    assert_int_equal(heads_of_tile(ragged, 12, -1), 4);
    assert_int_equal(heads_of_tile(window, 8, 127), 4);
    assert_int_equal(heads_of_tile(window, 8, 1023), 1);
    assert_int_equal(heads_of_tile(window, 8, -1), 1);
    assert_int_equal(heads_of_tile(FLASH_FEATURE_CAUSAL, 8, -1), 1);
    assert_int_equal(heads_of_tile(ragged | FLASH_FEATURE_BIAS, 8, -1), 1);
}

TEST(tiles_that_heads_share_are_fewer) {
    const flash_config_t config = causal_row(128, FLASH_FEATURE_VARLEN);
    const flash_params_t p = square(128, 3, 32, 4, 40);
    const flash_params_t shared = schedule_sm90_problem(&config, &p);
    assert_int_equal(sm90_tiles(&config, &p), 3 * 32);
    assert_int_equal(sm90_tiles(&config, &shared), 3 * 8 * 2);
    assert_int_equal(schedule_sm90_tiles(&config, &p), 3 * 8 * 2);
    assert_int_equal(schedule_of(&config, &shared).section_heads, 8);
}

/* Returns whether `batch` sequences of this length are scheduled in turn. */
static int32_t is_even(int32_t features, int32_t batch, int32_t group, int32_t length,
                       int32_t window_left) {
    const flash_config_t config = causal_row(64, features);
    flash_params_t p = square(64, batch, 8, group, length);
    p.window_left = window_left;
    p = schedule_sm90_problem(&config, &p);
    return schedule_of(&config, &p).is_even;
}

TEST(short_tiles_take_turns) {
    const int32_t ragged = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN;
    const int32_t window = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW;
    assert_int_equal(is_even(ragged, 300, 1, 256, -1), 1);
    assert_int_equal(is_even(ragged, 300, 1, 512, -1), 0);
    assert_int_equal(is_even(ragged, 300, 4, 512, -1), 1);
    assert_int_equal(is_even(ragged, 8, 1, 512, -1), 1); /* two tiles a block, or fewer */
    assert_int_equal(is_even(ragged, 300, 4, 600, -1), 0);
    assert_int_equal(is_even(window, 4, 4, 4096, 127), 1);
    assert_int_equal(is_even(window, 4, 4, 4096, 1023), 0);
    assert_int_equal(is_even(window, 4, 4, 4096, -1), 0);
    assert_int_equal(is_even(FLASH_FEATURE_CAUSAL, 300, 1, 128, -1), 0);
}

TEST(many_short_tiles_make_large_bundles) {
    const flash_config_t config = causal_row(64, FLASH_FEATURE_VARLEN);
    static const int32_t bundles[][2] = {{8, 1}, {300, 4}, {9000, 8}}; /* sequences, tiles */
    for (size_t i = 0; i < sizeof bundles / sizeof bundles[0]; i++) {
        const flash_params_t p = square(64, bundles[i][0], 8, 1, 100);
        assert_int_equal(schedule_of(&config, &p).bundle_tiles, bundles[i][1]);
    }
}

TEST(empty_problems_have_a_schedule) {
    const flash_config_t config = causal_row(64, FLASH_FEATURE_CAUSAL);
    flash_params_t no_keys = square(64, 200, 1, 1, 64);
    no_keys.seqlen_k = 0;
    assert_int_equal(schedule_of(&config, &no_keys).whole_heads, MULTIPROCESSORS);
}

/* Checks that each tile of the heads goes to one block of the team, and that each block gets as
 * many tiles, short and long. The first tile of a causal head sees the most keys. */
static void check_team(uint32_t tiles, uint32_t blocks) {
    const uint32_t heads = 2 * blocks;
    bool taken[2 * MOST_BLOCKS * MOST_TILES] = {false};
    for (uint32_t rank = 0; rank < blocks; rank++) {
        uint32_t work = 0;
        for (sm90_team_row_t row = {0, 0, 0}; row.head < heads;
             row = sm90_next_row(row, tiles, blocks)) {
            const uint32_t number = row.head * tiles + sm90_tile_in_row(row, blocks, rank);
            assert_true(number < heads * tiles);
            assert_false(taken[number]);
            taken[number] = true;
            work += tiles - number % tiles;
        }
        const uint32_t even = heads * tiles * (tiles + 1) / 2 / blocks;
        const uint32_t odds = tiles % blocks == 0 ? 0 : blocks * blocks;
        assert_in_range(work, even - odds, even + odds);
    }
}

TEST(a_team_takes_every_tile_once_and_evenly) {
    for (uint32_t blocks = 1; blocks <= MOST_BLOCKS; blocks *= 2)
        for (uint32_t tiles = blocks; tiles <= MOST_TILES; tiles += tiles == blocks ? blocks : 1)
            check_team(tiles, blocks);
}
