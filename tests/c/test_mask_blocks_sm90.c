/*
 * SM90 calls with a mask: how many blocks a kernel looks at ahead of them, and in which workspace.
 */
#include "cuda/sm90/mask_blocks_sm90.h"
#include "kernels/common/bias.h"
#include "kernels/sm90/mask_blocks_kernel.h"
#include "support.h"

enum { BATCH = 3, HEADS = 4, QUERIES = 300, KEYS = 1000, B_R = 128, B_C = 128 };

static const flash_config_t biased = {
    .arch = FLASH_ARCH_SM90, .features = FLASH_FEATURE_BIAS, .B_r = B_R, .B_c = B_C};

/* Makes a problem whose mask covers all keys, and is one for the whole batch. Where its data is
 * does not matter: there is none yet when a call is planned. */
static flash_params_t masked(void) {
    return (flash_params_t){.batch = BATCH,
                            .n_heads = HEADS,
                            .seqlen_q = QUERIES,
                            .seqlen_k = KEYS,
                            .bias = {.kind = FLASH_MASK_BITS, .n_keys = KEYS}};
}

static void check_blocks(const flash_params_t *p, int32_t entries, int32_t heads) {
    const flash_mask_blocks_t m = mask_blocks_sm90(&biased, p);
    assert_int_equal(m.entries, entries);
    assert_int_equal(m.heads, heads);
    assert_int_equal(m.tiles, 3);
    assert_int_equal(m.blocks, 8);
    assert_null(m.effects);
    assert_int_equal(mask_blocks_sm90_workspace(&biased, p), entries * heads * 3 * 8);
    flash_bias_t bias = p->bias;
    bias.blocks = m;
    assert_int_equal(sm90_mask_blocks_grid(&bias), entries * heads * 3 * 2);
    bias.kind = FLASH_MASK_BLOCKS;
    assert_int_equal(sm90_mask_blocks_grid(&bias), entries * heads * 3);
}

TEST(what_is_repeated_is_looked_at_once) {
    const int32_t lengths[BATCH] = {0};
    flash_params_t p = masked();
    check_blocks(&p, 1, 1);
    p.bias.stride_head = 1;
    check_blocks(&p, 1, HEADS);
    p.bias.stride_batch = 1;
    check_blocks(&p, BATCH, HEADS);
    p.bias.stride_head = p.bias.stride_batch = 0;
    p.seqused_k = lengths;
    check_blocks(&p, BATCH, 1);
}

TEST(each_block_has_a_place_of_its_own) {
    flash_params_t p = masked();
    p.bias.stride_head = p.bias.stride_batch = 1;
    const flash_mask_blocks_t m = mask_blocks_sm90(&biased, &p);
    int64_t expected = 0;
    for (int32_t entry = 0; entry < BATCH; entry++)
        for (int32_t head = 0; head < HEADS; head++)
            for (int32_t tile = 0; tile < m.tiles; tile++, expected += m.blocks)
                assert_int_equal(flash_mask_blocks_at(&m, entry, head, tile), expected);
    assert_int_equal(mask_blocks_sm90_workspace(&biased, &p), expected);
}

static void check_nothing_is_looked_at(const flash_config_t *config, const flash_params_t *p) {
    assert_int_equal(mask_blocks_sm90(config, p).blocks, 0);
    assert_int_equal(mask_blocks_sm90_workspace(config, p), 0);
}

TEST(nothing_is_looked_at_where_little_can_be_left_out) {
    flash_config_t other = biased;
    flash_params_t p = masked();
    p.bias.kind = 0;
    check_nothing_is_looked_at(&biased, &p);
    p = masked();
    p.bias.n_keys = B_C - 1;
    check_nothing_is_looked_at(&biased, &p);
    p = masked();
    p.seqlen_k = 4 * B_C;
    check_nothing_is_looked_at(&biased, &p);
    p = masked();
    other.features = 0;
    check_nothing_is_looked_at(&other, &p);
    other = biased;
    other.B_c = SM90_MASK_BLOCKS_MOST_KEYS + 16;
    check_nothing_is_looked_at(&other, &p);
}

/* Calls of more blocks do without, but their workspace serves any smaller call. */
TEST(the_workspace_is_bounded) {
    enum { MOST = 64 << 20 };
    flash_params_t p = masked();
    p.seqlen_q = p.seqlen_k = p.bias.n_keys = 1 << 20;
    assert_int_equal(mask_blocks_sm90(&biased, &p).blocks, 1 << 13);
    assert_int_equal(mask_blocks_sm90_workspace(&biased, &p), MOST);
    p.seqlen_k += 1;
    assert_int_equal(mask_blocks_sm90(&biased, &p).blocks, 0);
    assert_int_equal(mask_blocks_sm90_workspace(&biased, &p), MOST);
    p.batch = p.n_heads = p.seqlen_q = p.seqlen_k = INT32_MAX - 1000;
    p.bias.stride_head = p.bias.stride_batch = 1;
    assert_int_equal(mask_blocks_sm90(&biased, &p).blocks, 0);
    assert_int_equal(mask_blocks_sm90_workspace(&biased, &p), MOST);
}

/* ---- Rows whose consumers only count blocks ---- */

static flash_config_t counting(void) {
    flash_config_t config = biased;
    config.features |= FLASH_FEATURE_VARLEN;
    config.fixed_reference = 1;
    return config;
}

static problem_t in_blocks(int32_t queries, int32_t keys) {
    problem_t problem = {.features = FLASH_FEATURE_BIAS, .params = masked()};
    problem.params.bias.kind = FLASH_MASK_BLOCKS;
    problem.params.bias.block = (flash_mask_block_t){queries, keys};
    return problem;
}

TEST(counting_rows_serve_masks_of_whole_tiles) {
    const flash_config_t config = counting();
    problem_t problem = in_blocks(B_R, B_C);
    assert_null(mask_blocks_sm90_obstacle(&config, &problem));
    problem = in_blocks(2 * B_R, 3 * B_C);
    assert_null(mask_blocks_sm90_obstacle(&config, &problem));
    problem.params.bias.first_key = B_C; /* it reaches beyond the last key */
    assert_null(mask_blocks_sm90_obstacle(&config, &problem));
    problem.params.bias = (flash_bias_t){.kind = 0};
    problem.features = 0;
    assert_null(mask_blocks_sm90_obstacle(&config, &problem));
}

static void check_is_refused(problem_t problem, const char *words) {
    const flash_config_t config = counting();
    const char *found = mask_blocks_sm90_obstacle(&config, &problem);
    assert_non_null(found);
    assert_non_null(strstr(found, words));
    assert_null(mask_blocks_sm90_obstacle(&biased, &problem));
}

TEST(counting_rows_refuse_other_bias) {
    const float slope = 1;
    problem_t problem = in_blocks(B_R, B_C);
    check_is_refused(in_blocks(B_R / 2, B_C), "of a multiple of B_r queries");
    check_is_refused(in_blocks(B_R, B_C / 2), "of a multiple of B_r queries");
    problem.params.bias.first_key = 1;
    check_is_refused(problem, "begin and end with a block");
    problem = in_blocks(B_R, B_C);
    problem.params.bias.n_keys = KEYS - 1;
    check_is_refused(problem, "begin and end with a block");
    problem = in_blocks(B_R, B_C);
    problem.params.bias.is_last_keys = 1;
    check_is_refused(problem, "begin and end with a block");
    problem = in_blocks(B_R, B_C);
    problem.params.bias.alibi_slopes = &slope;
    check_is_refused(problem, "no bias but masks of blocks");
    problem = in_blocks(B_R, B_C);
    problem.params.bias.kind = FLASH_MASK_BITS;
    check_is_refused(problem, "no bias but masks of blocks");
    problem = in_blocks(B_R, B_C);
    problem.batch_invariant = true;
    check_is_refused(problem, "no batch-invariant call");
    problem = in_blocks(B_R, B_C);
    problem.params.seqlen_k = 4 * B_C;
    check_is_refused(problem, "few or very many blocks");
}
