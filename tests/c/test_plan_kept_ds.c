/*
 * Where tiles of dS lie that a kernel of dK and dV keeps: each tile that a query sees a key of has
 * a place of its own in the memory of its section, and sections cover the call.
 */
#include "cuda/backward/plan_kept_ds.h"
#include "cuda/family.h"
#include "kernels/common/sequence.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, HEADS = 6, HEADS_KV = 3, GROUP = 2, TILE_QUERIES = 48, TILE_KEYS = 64 };

static cuda_ds_tile_t tile_of(const flash_config_t *config) {
    (void)config;
    return (cuda_ds_tile_t){.queries = TILE_QUERIES, .keys = TILE_KEYS};
}

static void no_function(void) {
}

static const cuda_family_t cuda = {.ds_tile = tile_of};
static const family_op_t op = {.cuda = &cuda};
static const family_t family = {.ops = {[FLASH_OP_BACKWARD_DKV] = &op}};
static const flash_kernel_t kernel = {
    .config = {.op = FLASH_OP_BACKWARD_DKV}, .dq_of_ds = no_function, .family = &family};
static const device_t few_multiprocessors = {.n_multiprocessors = 1};

typedef struct lengths {
    int32_t queries;
    int32_t keys;
} lengths_t;

static problem_t make_problem(lengths_t most, int32_t window_left, int32_t window_right) {
    problem_t problem = {.has_output = true};
    problem.params = (flash_params_t){.batch = BATCH,
                                      .seqlen_q = most.queries,
                                      .seqlen_k = most.keys,
                                      .n_heads = HEADS,
                                      .n_heads_kv = HEADS_KV,
                                      .group = GROUP,
                                      .window_left = window_left,
                                      .window_right = window_right};
    problem.gradients.n_rows = (int64_t)BATCH * most.queries;
    return problem;
}

TEST(an_empty_batch_keeps_nothing) {
    problem_t problem = make_problem((lengths_t){500, 500}, -1, 0);
    problem.params.batch = 0; /* d_sinks are written all the same */
    problem.gradients.n_rows = 0;
    assert_int_equal(plan_kept_ds(&kernel, &problem, &few_multiprocessors).size, 0);
}

/* ---- Places ---- */

/* Marks the places of all tiles of a head that some query of a row sees. */
static void mark_head(const kept_ds_plan_t *plan, const flash_section_t *section,
                      const flash_params_t *p, int32_t batch, int32_t head, char *marks) {
    const flash_sequence_t s = flash_sequence(p, batch);
    const uint64_t places = plan->size / (TILE_QUERIES * TILE_KEYS * 2);
    for (int32_t row = 0; row * TILE_QUERIES < s.len_q; row++) {
        const int32_t first = flash_kept_first(p, &s, TILE_QUERIES, TILE_KEYS, row);
        int32_t end = 0;
        for (int32_t i = row * TILE_QUERIES; i < s.len_q && i < (row + 1) * TILE_QUERIES; i++) {
            const flash_range_t keys = flash_visible_keys(p, &s, i);
            if (keys.end > keys.begin)
                end = keys.end;
        }
        for (int32_t column = first; column * TILE_KEYS < end; column++) {
            const int64_t place = flash_kept_place(&plan->ds, section, p->group, &s, batch, head,
                                                   TILE_QUERIES, row, column, first);
            assert_true(place >= 0 && (uint64_t)place < places);
            assert_int_equal(marks[place], 0);
            marks[place] = 1;
        }
    }
}

static void mark_section(const kept_ds_plan_t *plan, const flash_section_t *section,
                         const flash_params_t *p, int *heads_done) {
    char *marks = calloc(plan->size / (TILE_QUERIES * TILE_KEYS * 2), 1);
    assert_non_null(marks);
    for (int32_t batch = 0; batch < section->n_batch; batch++)
        for (int32_t head = 0; head < section->n_heads * GROUP; head++) {
            const int32_t of_call = section->first_head * GROUP + head;
            mark_head(plan, section, p, section->first_batch + batch, of_call, marks);
            heads_done[(section->first_batch + batch) * HEADS + of_call]++;
        }
    free(marks);
}

static int check_places(const problem_t *problem) {
    const kept_ds_plan_t plan = plan_kept_ds(&kernel, problem, &few_multiprocessors);
    int heads_done[BATCH * HEADS] = {0}, sections = 0;
    assert_true(plan.size > 0);
    assert_true(plan.size <= MOST_KEPT_DS);
    flash_section_t section = plan.section;
    do {
        mark_section(&plan, &section, &problem->params, heads_done);
        sections++;
    } while (plan_next_section(&plan, &problem->params, &section));
    for (int i = 0; i < BATCH * HEADS; i++)
        assert_int_equal(heads_done[i], 1);
    return sections;
}

static const lengths_t some_lengths[] = {{1, 1},     {1, 500},   {500, 1},   {48, 64},  {49, 65},
                                         {192, 192}, {193, 193}, {400, 100}, {100, 700}};
static const int32_t windows[][2] = {{-1, -1}, {-1, 0}, {-1, 70},  {0, 0},  {5, 3},
                                     {63, 0},  {64, 1}, {130, 40}, {40, -1}};

enum {
    N_LENGTHS = sizeof some_lengths / sizeof some_lengths[0],
    N_WINDOWS = sizeof windows / sizeof windows[0]
};

TEST(each_tile_has_a_place) {
    for (int i = 0; i < N_LENGTHS; i++)
        for (int j = 0; j < N_WINDOWS; j++) {
            const problem_t problem = make_problem(some_lengths[i], windows[j][0], windows[j][1]);
            assert_int_equal(check_places(&problem), 1);
        }
}

TEST(each_tile_has_a_place_where_lengths_are_used) {
    static const int32_t used_q[BATCH] = {0, 77, 193}, used_k[BATCH] = {193, 1, 65};
    for (int j = 0; j < N_WINDOWS; j++) {
        problem_t problem = make_problem((lengths_t){193, 193}, windows[j][0], windows[j][1]);
        problem.params.seqused_q = used_q;
        problem.params.seqused_k = used_k;
        check_places(&problem);
    }
}

TEST(each_tile_has_a_place_in_ragged_batches) {
    static const int32_t of_q[BATCH + 1] = {0, 193, 193, 290}, of_k[BATCH + 1] = {0, 50, 115, 308};
    for (int j = 0; j < N_WINDOWS; j++) {
        problem_t problem = make_problem((lengths_t){193, 193}, windows[j][0], windows[j][1]);
        problem.params.cu_seqlens_q = of_q;
        problem.params.cu_seqlens_k = of_k;
        problem.gradients.n_rows = 290;
        check_places(&problem);
    }
}

TEST(each_tile_has_a_place_in_chunks) {
    for (int j = 0; j < N_WINDOWS; j++)
        for (int32_t chunk = 30; chunk < 200; chunk += 53) {
            problem_t problem = make_problem((lengths_t){193, 250}, windows[j][0], windows[j][1]);
            problem.params.attention_chunk = chunk;
            problem.params.by_attention_chunk = flash_divider(chunk);
            check_places(&problem);
        }
}

/* ---- Sizes ---- */

TEST(a_causal_mask_and_windows_save_memory) {
    const lengths_t lengths = {64 * 48, 64 * 48};
    const problem_t full = make_problem(lengths, -1, -1), causal = make_problem(lengths, -1, 0);
    const problem_t window = make_problem(lengths, 200, 0);
    const uint64_t all = plan_kept_ds(&kernel, &full, &few_multiprocessors).size;
    assert_int_equal(all, UINT64_C(2) * BATCH * HEADS * lengths.queries * lengths.keys);
    assert_true(plan_kept_ds(&kernel, &causal, &few_multiprocessors).size < all * 53 / 100);
    assert_true(plan_kept_ds(&kernel, &window, &few_multiprocessors).size < all / 8);
}

/* Sections of some heads, of an entry each. */
TEST(more_than_the_memory_is_cut_into_sections) {
    problem_t problem = make_problem((lengths_t){22600, 22600}, -1, -1);
    const kept_ds_plan_t plan = plan_kept_ds(&kernel, &problem, &few_multiprocessors);
    assert_int_equal(plan.section.n_heads, 1);
    assert_int_equal(plan.section.n_batch, 1);
    problem = make_problem((lengths_t){12700, 12700}, -1, 0);
    const kept_ds_plan_t entries = plan_kept_ds(&kernel, &problem, &few_multiprocessors);
    assert_int_equal(entries.section.n_heads, HEADS_KV);
    assert_int_equal(entries.section.n_batch, 2);
    flash_section_t section = entries.section;
    assert_true(plan_next_section(&entries, &problem.params, &section));
    assert_int_equal(section.first_batch, 2);
    assert_int_equal(section.n_batch, 1);
    assert_false(plan_next_section(&entries, &problem.params, &section));
}

static cuda_ds_tile_t tile_of_rows_apart(const flash_config_t *config) {
    cuda_ds_tile_t tile = tile_of(config);
    tile.has_own_places = true;
    return tile;
}

TEST(a_family_may_have_no_rows_that_share_places) {
    static const cuda_family_t apart = {.ds_tile = tile_of_rows_apart};
    static const family_op_t op_apart = {.cuda = &apart};
    static const family_t family_apart = {.ops = {[FLASH_OP_BACKWARD_DKV] = &op_apart}};
    const problem_t problem = make_problem((lengths_t){1000, 1000}, -1, 0);
    flash_kernel_t with = kernel;
    with.family = &family_apart;
    const kept_ds_plan_t plan = plan_kept_ds(&with, &problem, &few_multiprocessors);
    assert_false(plan.ds.is_folded);
    assert_true(plan.size > plan_kept_ds(&kernel, &problem, &few_multiprocessors).size);
}

TEST(ds_is_not_kept_where_sections_would_be_too_small) {
    static const device_t many = {.n_multiprocessors = 200};
    problem_t problem = make_problem((lengths_t){22600, 22600}, -1, -1);
    assert_int_equal(plan_kept_ds(&kernel, &problem, &many).size, 0);
    problem = make_problem((lengths_t){400000, 400000}, -1, -1);
    assert_int_equal(plan_kept_ds(&kernel, &problem, &few_multiprocessors).size, 0);
    const flash_kernel_t without = {.config = {.op = FLASH_OP_BACKWARD_DKV}, .family = &family};
    problem = make_problem((lengths_t){100, 100}, -1, -1);
    assert_int_equal(plan_kept_ds(&without, &problem, &few_multiprocessors).size, 0);
}
